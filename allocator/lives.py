"""Which blocks a trace finds alive when it begins, from all its allocations and frees at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..snapshots.model import Action, BlockState, DeviceSnapshot


@dataclass(slots=True)
class OldBlock:
    """A block older than the trace."""

    requested: int
    size: int | None  # None = not known: freed in the trace
    pending: bool  # freed before the trace, still used by another stream
    death: int  # event of its free_completed; the number of events = still live at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """`older` by address. `contradictions` are (event, what) where trace and final blocks exclude each other."""

    older: dict[int, OldBlock]
    contradictions: list[tuple[int, str]]
    alloc_address: NDArray[np.uint64]  # sorted
    alloc_event: NDArray[np.int64]  # of the same rows


def lives(device: DeviceSnapshot) -> Lives:
    """Per address, allocations and frees must take turns, with equal sizes, and end with what the snapshot shows."""
    trace = device.trace
    event = np.flatnonzero((trace.action == Action.ALLOC) | (trace.action == Action.FREE_COMPLETED))
    event = event[np.argsort(trace.address[event], kind="stable")]
    address, size = trace.address[event], trace.size[event]
    is_alloc = trace.action[event] == Action.ALLOC
    same = address[1:] == address[:-1]
    first = np.concatenate([[True], ~same]) if len(event) else np.zeros(0, np.bool_)
    last = np.concatenate([~same, [True]]) if len(event) else np.zeros(0, np.bool_)
    contradictions = _turns(event, address, size, is_alloc, same)

    held = np.flatnonzero(device.blocks.state != BlockState.INACTIVE)
    held = held[np.argsort(device.blocks.address[held], kind="stable")]
    ends = np.flatnonzero(last)
    contradictions += _ends(device, event, address, size, is_alloc, ends, held)

    asked = np.flatnonzero(trace.action == Action.FREE_REQUESTED)
    asked_address, where = np.unique(trace.address[asked], return_index=True)
    asked_first = dict(zip(asked_address.tolist(), asked[where].tolist(), strict=True))
    skipped = not len(asked) and bool(np.any(~first & ~is_alloc))  # torch 2.13's skip_actions left requests out
    older: dict[int, OldBlock] = {}
    rows = np.flatnonzero(first & ~is_alloc)
    for each, requested, death in zip(address[rows].tolist(), size[rows].tolist(), event[rows].tolist(), strict=True):
        pending = not skipped and asked_first.get(each, len(trace)) > death
        older[each] = OldBlock(requested, None, pending, death)
    untouched = held[~np.isin(device.blocks.address[held], address)]
    blocks = device.blocks
    for each, requested, bytes_, state in zip(
        blocks.address[untouched].tolist(),
        blocks.requested[untouched].tolist(),
        blocks.size[untouched].tolist(),
        blocks.state[untouched].tolist(),
        strict=True,
    ):
        pending = state == BlockState.ACTIVE_PENDING_FREE and each not in asked_first
        older[each] = OldBlock(requested, bytes_, pending, len(trace))
    return Lives(
        older=dict(sorted(older.items())),
        contradictions=sorted(contradictions, reverse=True),
        alloc_address=address[is_alloc],
        alloc_event=event[is_alloc],
    )


def _turns(
    event: NDArray[np.int64],
    address: NDArray[np.uint64],
    size: NDArray[np.int64],
    is_alloc: NDArray[np.bool_],
    same: NDArray[np.bool_],
) -> list[tuple[int, str]]:
    was, then = is_alloc[:-1], is_alloc[1:]
    twice = np.flatnonzero(same & was & then).tolist()
    freed_twice = np.flatnonzero(same & ~was & ~then).tolist()
    unequal = np.flatnonzero(same & was & ~then & (size[:-1] != size[1:])).tolist()
    at = [f"{int(each):#x}" for each in address] if twice or freed_twice or unequal else []
    return [
        *((int(event[row]), f"allocates {at[row]}, which is allocated again without a free") for row in twice),
        *((int(event[row + 1]), f"frees {at[row]}, which was freed before") for row in freed_twice),
        *(
            (int(event[row]), f"allocates {size[row]} bytes at {at[row]}, freed with {size[row + 1]}")
            for row in unequal
        ),
    ]


def _ends(
    device: DeviceSnapshot,
    event: NDArray[np.int64],
    address: NDArray[np.uint64],
    size: NDArray[np.int64],
    is_alloc: NDArray[np.bool_],
    ends: NDArray[np.intp],
    held: NDArray[np.intp],
) -> list[tuple[int, str]]:
    """The last word of the trace on each address against the blocks of the snapshot."""
    held_address, held_requested = device.blocks.address[held], device.blocks.requested[held]
    at = np.searchsorted(held_address, address[ends])
    inside = at < len(held)
    at = np.where(inside, at, 0)
    live = inside & (held_address[at] == address[ends]) if len(held) else np.zeros(len(ends), np.bool_)
    last_alloc, last_free = ends[is_alloc[ends] & ~live].tolist(), ends[~is_alloc[ends] & live].tolist()
    unequal = [
        (row, int(held_requested[block]))
        for row, block in zip(ends[live].tolist(), at[live].tolist(), strict=True)
        if is_alloc[row] and size[row] != held_requested[block]
    ]
    where = {row: f"{int(address[row]):#x}" for row in [*last_alloc, *last_free, *(row for row, _ in unequal)]}
    return [
        *(
            (int(event[r]), f"allocates {where[r]}, which is neither freed later nor live at the end")
            for r in last_alloc
        ),
        *((int(event[r]), f"frees {where[r]}, which is live at the end") for r in last_free),
        *((int(event[r]), f"allocates {size[r]} bytes at {where[r]}, which holds {n} at the end") for r, n in unequal),
    ]
