"""Block sizes, the unit of `memory_allocated`, from the layout alone: no request is replayed.

Blocks tile their segment and free neighbours always merge, so the free block that served a request at address A
reached from A to the next live block or to the end of the segment. `should_split` (CUDACachingAllocator.cpp) then says
what was handed out: the rounded request, or all of it where the rest would have been 1 MiB or less. In the small pool
and in expandable segments any rest of 512 bytes is split off, so there the block is the rounded request.

A block older than the trace and freed in it can have a rest that its own event does not show. It does show when the
next live block is near (a free block of the large pool is never as small as 1 MiB), or when something is later placed
behind it (at the start of the free block there, where it ends). The others are counted as uncertain.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..snapshots.model import Action, DeviceSnapshot
from ..snapshots.timeline import Lifetimes
from .config import MIN_BLOCK, SMALL_SIZE, AllocatorConfig

MAX_REST = SMALL_SIZE  # an unsplit rest of the large pool is at most this, below max_split_size
MAX_ROUNDS = 4096  # a rest of 1 MiB has room for 2,048 addresses; beyond, the addresses are not the allocator's

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockBytes:
    """`bytes` by row of the lifetimes. Event -1 = before the first event."""

    bytes: I64
    uncertain: int  # rows that may be up to MAX_REST larger
    contradictions: int  # rows alive at the dump whose block there has another size: the rules do not hold here
    peak_allocated: int  # as max_memory_allocated counts it: until the free is requested
    peak_event: int


def block_bytes(device: DeviceSnapshot, lives: Lifetimes, config: AllocatorConfig) -> BlockBytes:
    """The block size of every allocation of `device`, whose lifetimes are `lives`."""
    sizes = _rounded(lives.requested, config)
    uncertain = np.zeros(len(lives), np.bool_)
    if not config.expandable_segments:
        large = np.flatnonzero(sizes > SMALL_SIZE)
        sizes[large], uncertain[large] = _with_rests(device, lives, large, sizes[large], config)
    at_dump = lives.block >= 0
    recorded = device.blocks.size[lives.block[at_dump]]
    contradictions = int(np.count_nonzero((recorded != sizes[at_dump]) & (lives.birth[at_dump] >= 0)))
    sizes[at_dump] = recorded
    uncertain[at_dump] = False
    allocated = _allocated(lives, sizes, len(device.trace))
    peak = int(allocated.argmax())
    return BlockBytes(
        bytes=sizes,
        uncertain=int(np.count_nonzero(uncertain)),
        contradictions=contradictions,
        peak_allocated=int(allocated[peak]),
        peak_event=peak - 1,
    )


def _rounded(requested: I64, config: AllocatorConfig) -> I64:
    if max(config.roundup_divisions) <= 1:
        return np.maximum(-(-requested // MIN_BLOCK), 1) * MIN_BLOCK
    distinct, row = np.unique(requested, return_inverse=True)
    return np.array([config.round_size(size) for size in distinct.tolist()], np.int64)[row]


def _allocated(lives: Lifetimes, sizes: I64, events: int) -> I64:
    """Allocated block bytes before the first event and after each; shape (events + 1,)."""
    requested = lives.free_requested
    unasked = (requested == lives.death) & (requested < events)
    if not np.any(unasked & (lives.birth >= 0)):
        # requests are recorded: a completion alone means that the free was asked for before the trace began
        requested = np.where(unasked, -1, requested)
    change = np.bincount(lives.birth + 1, weights=sizes, minlength=events + 1)
    freed = requested < events
    change -= np.bincount(requested[freed] + 1, weights=sizes[freed], minlength=events + 1)
    return np.cumsum(change.astype(np.int64))


def _with_rests(
    device: DeviceSnapshot, lives: Lifetimes, rows: NDArray[np.intp], rounded: I64, config: AllocatorConfig
) -> tuple[I64, NDArray[np.bool_]]:
    """-> (block sizes, which may be larger) of `rows`, requests of the large pool."""
    birth, end = lives.birth[rows], lives.address[rows] + rounded.astype(np.uint64)
    limit = np.full(len(rows), MAX_REST, np.int64)
    if config.max_split_size is not None:
        limit[rounded >= config.max_split_size] = np.iinfo(np.int64).max  # never split
    segment_end = _segment_end(device, lives.address[rows], birth)
    reach = np.minimum(segment_end, end + limit.astype(np.uint64))
    following = _next_live(lives.address[rows], birth, lives.death[rows], end, reach)
    rest = (np.minimum(following, segment_end) - end).astype(np.int64)
    unsplit = (segment_end >= end) & (rest <= limit) & (rest >= 0)
    hidden = (birth < 0) & (segment_end > end) & ~unsplit
    sizes = rounded + np.where(unsplit, rest, 0)
    shown = _placed_behind(lives, rows[hidden], end[hidden], np.minimum(reach, segment_end)[hidden])
    sizes[hidden] += np.where(shown >= end[hidden], (shown - end[hidden]).astype(np.int64), 0)
    hidden[hidden] = shown < end[hidden]
    return sizes, hidden


def _placed_behind(lives: Lifetimes, rows: NDArray[np.intp], end: U64, reach: U64) -> U64:
    """For each of `rows`, the address of the first allocation in [end, reach] while it lives; 0 where there is none."""
    recorded = np.flatnonzero(lives.birth >= 0)
    recorded = recorded[np.argsort(lives.address[recorded], kind="stable")]
    known = lives.address[recorded]
    low, high = np.searchsorted(known, end), np.searchsorted(known, reach, side="right")
    out = np.zeros(len(rows), np.uint64)
    for i, row in enumerate(rows.tolist()):
        near = recorded[low[i] : high[i]]
        near = near[lives.birth[near] < lives.death[row]]
        if len(near):
            out[i] = lives.address[near[lives.birth[near].argmin()]]
    return out


def _next_live(address: U64, birth: I64, death: I64, end: U64, reach: U64) -> U64:
    """For each row, the lowest address in [end, reach] that another row holds just after `birth`; 2**64 - 1 if none."""
    order = np.lexsort((birth, address))
    places, group = np.unique(address[order], return_inverse=True)
    width = int(death.max(initial=0)) + 2
    key = group * width + birth[order] + 1
    deaths = death[order]
    out = np.full(len(address), np.iinfo(np.uint64).max, np.uint64)
    at = np.searchsorted(places, end)
    open_rows = np.arange(len(address))
    for _ in range(MAX_ROUNDS):
        place = at[open_rows]
        inside = place < len(places)
        inside[inside] &= places[place[inside]] <= reach[open_rows[inside]]
        open_rows, place = open_rows[inside], place[inside]
        if not len(open_rows):
            break
        latest = np.searchsorted(key, place * width + birth[open_rows] + 1, side="right") - 1
        held = (latest >= 0) & (group[latest] == place) & (deaths[latest] > birth[open_rows])
        out[open_rows[held]] = places[place[held]]
        open_rows = open_rows[~held]
        at[open_rows] += 1
    return out


def _segment_end(device: DeviceSnapshot, address: U64, birth: I64) -> U64:
    """End of the segment (not an expandable one) that holds `address` just after `birth`; 0 where none does."""
    start, end, born, gone = _segments(device)
    out = np.zeros(len(address), np.uint64)
    open_rows = np.arange(len(address))
    at = np.searchsorted(start, address, side="right") - 1
    for _ in range(MAX_ROUNDS):
        open_rows = open_rows[at[open_rows] >= 0]
        if not len(open_rows):
            break
        row = at[open_rows]
        holds = (born[row] <= birth[open_rows]) & (gone[row] > birth[open_rows]) & (end[row] > address[open_rows])
        out[open_rows[holds]] = end[row[holds]]
        open_rows = open_rows[~holds]
        at[open_rows] -= 1
    return out


def _segments(device: DeviceSnapshot) -> tuple[U64, U64, I64, I64]:
    """(start, end, born, gone) of every segment there was, by start; born -1 = older than the trace."""
    trace, final = device.trace, device.segments
    never = len(trace)
    alive: dict[int, tuple[int, int]] = {}
    rows: list[tuple[int, int, int, int]] = []
    moves = np.flatnonzero((trace.action == Action.SEGMENT_ALLOC) | (trace.action == Action.SEGMENT_FREE))
    columns = (moves, trace.action[moves], trace.address[moves], trace.size[moves])
    for event, action, start, size in zip(*(column.tolist() for column in columns), strict=True):
        if action == Action.SEGMENT_ALLOC:
            alive[start] = (size, event)
        else:
            _, born = alive.pop(start, (size, -1))
            rows.append((start, start + size, born, event))
    for start, size, expandable in zip(
        final.address.tolist(), final.total_bytes.tolist(), final.expandable.tolist(), strict=True
    ):
        if not expandable:
            rows.append((start, start + size, alive.get(start, (size, -1))[1], never))
    rows.sort()
    start, end, born, gone = zip(*rows, strict=True) if rows else ((),) * 4
    mask = (1 << 64) - 1
    return (
        np.array(start, np.uint64),
        np.array([each & mask for each in end], np.uint64),
        np.array(born, np.int64),
        np.array(gone, np.int64),
    )
