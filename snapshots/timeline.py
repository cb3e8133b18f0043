"""Live and reserved bytes over the events of one device, and the exact peak.

In requested bytes, the unit of the trace:

    final = requested bytes of the blocks live at the dump
    start = final - (allocated - freed in the trace)       live before the first event
    peak  = highest of start + running sum, the start included

A block counts as live until `free_completed`. Blocks older than the trace are in `start` by the subtraction, so no
address needs to be followed. Reserved bytes the same way, from the segments and their events.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .model import Action, BlockState, DeviceSnapshot, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Bytes of one device. Event -1 = before the first event.

    When `consistent` is False the trace and the segments contradict each other (one was cut): only `final` and
    `reserved_final` can be reported.
    """

    start: int
    peak: int
    peak_event: int
    final: int
    reserved_start: int
    reserved_peak: int
    reserved_peak_event: int
    reserved_final: int
    events: int

    @property
    def consistent(self) -> bool:
        return self.start >= 0 and self.reserved_start >= 0

    @property
    def complete_from_start(self) -> bool:
        """The recording was on before the first allocation and the ring buffer dropped nothing."""
        return self.events > 0 and self.start == 0 and self.reserved_start == 0


def extent(device: DeviceSnapshot) -> Extent:
    live, reserved = live_bytes(device), reserved_bytes(device)
    peak, reserved_peak = int(live.argmax()), int(reserved.argmax())
    return Extent(
        start=int(live[0]),
        peak=int(live[peak]),
        peak_event=peak - 1,
        final=int(live[-1]),
        reserved_start=int(reserved[0]),
        reserved_peak=int(reserved[reserved_peak]),
        reserved_peak_event=reserved_peak - 1,
        reserved_final=int(reserved[-1]),
        events=len(device.trace),
    )


def live_bytes(device: DeviceSnapshot) -> NDArray[np.int64]:
    """Requested bytes live before the first event and after each; shape (events + 1,)."""
    final = int(device.blocks.requested[device.blocks.state != BlockState.INACTIVE].sum())
    return _running(device.trace, final, grow=(Action.ALLOC,), shrink=(Action.FREE_COMPLETED,))


def reserved_bytes(device: DeviceSnapshot) -> NDArray[np.int64]:
    """Bytes held from the driver before the first event and after each; shape (events + 1,)."""
    final = int(device.segments.total_bytes.sum())
    grow, shrink = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP), (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    return _running(device.trace, final, grow=grow, shrink=shrink)


def _running(trace: Trace, final: int, *, grow: tuple[Action, ...], shrink: tuple[Action, ...]) -> NDArray[np.int64]:
    sign = np.zeros(256, np.int64)
    sign[list(grow)] = 1
    sign[list(shrink)] = -1
    out = np.zeros(len(trace) + 1, np.int64)
    np.cumsum(sign[trace.action] * trace.size, out=out[1:])
    out += final - out[-1]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """One row per allocation of one device: those of the trace in order, then those older than it.

    Every column has shape (rows,). `birth` -1 = older than the trace; `death` and `free_requested` equal the number
    of events where that never happens in the trace.
    """

    address: NDArray[np.uint64]
    requested: NDArray[np.int64]
    birth: NDArray[np.int64]  # the alloc event
    free_requested: NDArray[np.int64]  # the last reference went; equals death where only one free event is recorded
    death: NDArray[np.int64]  # free_completed: the block can be used again
    alloc_stack: NDArray[np.int32]  # for older rows the block's own, where the dump has it
    free_stack: NDArray[np.int32]
    stream: NDArray[np.uint64]
    block: NDArray[np.int32]  # row in Blocks of a block that is live at the dump; -1 = freed before

    def __len__(self) -> int:
        return len(self.address)


def live_at(lifetimes: Lifetimes, event: int) -> NDArray[np.intp]:
    """Rows alive in the state just after `event`; -1 = before the first event."""
    return np.flatnonzero((lifetimes.birth <= event) & (lifetimes.death > event))


_latest: list[tuple[DeviceSnapshot, Lifetimes]] = []


def lifetimes(device: DeviceSnapshot) -> Lifetimes:
    """Match each allocation with its two free events and with its block at the dump, by address.

    The lifetimes of the device asked for last are kept: each cause of a diagnosis asks for the same ones.
    """
    if not (_latest and _latest[0][0] is device):
        _latest[:] = [(device, _lifetimes(device))]
    return _latest[0][1]


def _lifetimes(device: DeviceSnapshot) -> Lifetimes:
    trace, blocks = device.trace, device.blocks
    never = len(trace)
    moves = np.flatnonzero(trace.action <= Action.FREE_COMPLETED)
    moves = moves[np.argsort(trace.address[moves], kind="stable")]
    address, action = trace.address[moves], trace.action[moves]
    first_of_address = np.ones(len(moves), np.bool_)
    first_of_address[1:] = address[1:] != address[:-1]
    # a run is one use of an address: it starts with its alloc, or with a free of something older than the trace
    starts = first_of_address | (action == Action.ALLOC)
    run = np.cumsum(starts) - 1
    head = moves[starts]
    runs = len(head)
    born = trace.action[head] == Action.ALLOC
    requested_at = _first_in_run(run, moves, action == Action.FREE_REQUESTED, runs, never)
    death = _first_in_run(run, moves, action == Action.FREE_COMPLETED, runs, never)
    free_event = np.minimum(requested_at, death)
    free_stack = np.append(trace.stack, np.int32(-1))[free_event]
    block = _final_blocks(device, trace.address[head], death == never)
    unexplained = blocks.state != BlockState.INACTIVE
    unexplained[block[block >= 0]] = False
    older = np.flatnonzero(unexplained)

    order = np.concatenate([_by_event(np.flatnonzero(born), head, never), np.flatnonzero(~born)])
    own_stack = np.append(blocks.stack, np.int32(-1))[block]
    streams = device.segments.stream[blocks.segment[older]]
    return Lifetimes(
        address=np.concatenate([trace.address[head][order], blocks.address[older]]),
        requested=np.concatenate([trace.size[head][order], blocks.requested[older]]),
        birth=_with_older(np.where(born, head, -1)[order], older, -1),
        free_requested=_with_older(free_event[order], older, never),
        death=_with_older(death[order], older, never),
        alloc_stack=np.concatenate([np.where(born, trace.stack[head], own_stack)[order], blocks.stack[older]]),
        free_stack=np.concatenate([free_stack[order], np.full(len(older), -1, np.int32)]),
        stream=np.concatenate([trace.stream[head][order], streams]),
        block=np.concatenate([block[order], older.astype(np.int32)]),
    )


def _by_event(rows: NDArray[np.intp], event: NDArray[np.intp], events: int) -> NDArray[np.intp]:
    """`rows` in the order of their events, of which no two are the same."""
    at = np.full(events, -1, np.intp)
    at[event[rows]] = rows
    return at[at >= 0]


def _first_in_run(
    run: NDArray[np.intp], events: NDArray[np.intp], wanted: NDArray[np.bool_], runs: int, never: int
) -> NDArray[np.int64]:
    out = np.full(runs, never, np.int64)
    last_to_first = np.flatnonzero(wanted)[::-1]
    out[run[last_to_first]] = events[last_to_first]  # of several, the last one written stays
    return out


def _with_older(values: NDArray[np.int64], older: NDArray[np.intp], value: int) -> NDArray[np.int64]:
    return np.concatenate([values, np.full(len(older), value, np.int64)])


def _final_blocks(device: DeviceSnapshot, address: NDArray[np.uint64], alive: NDArray[np.bool_]) -> NDArray[np.int32]:
    """For each run that is alive at the end, the live block at its address; -1 where there is none."""
    rows = np.flatnonzero(device.blocks.state != BlockState.INACTIVE).astype(np.int32)
    out = np.full(len(address), -1, np.int32)
    if not len(rows):
        return out
    rows = rows[np.argsort(device.blocks.address[rows], kind="stable")]
    known = device.blocks.address[rows]
    at = np.minimum(np.searchsorted(known, address), len(known) - 1)
    found = alive & (known[at] == address)
    out[found] = rows[at[found]]
    return out
