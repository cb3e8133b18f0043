"""Does a snapshot agree with itself? Used by tests after every transformation, and on files from outside."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .model import Action, Blocks, BlockState, DeviceRecording, DeviceSnapshot, Snapshot
from .timeline import extent, lifetimes, live_at, live_bytes


def self_check(snapshot: Snapshot) -> tuple[str, ...]:
    """Problems in words, one each; empty = the snapshot holds together."""
    found: list[str] = []
    numbers = [device.device for device in snapshot.devices]
    if numbers != sorted(set(numbers)):
        found.append("devices are not in ascending order, each once")
    for device in snapshot.devices:
        found += [f"device {device.device}: {problem}" for problem in _device(device, snapshot)]
    if snapshot.recording is not None:
        events = {device.device: len(device.trace) for device in snapshot.devices}
        for number, recorded in snapshot.recording.devices.items():
            sizes = len(snapshot.recording.categories), len(snapshot.recording.modules)
            found += [f"device {number}: {p}" for p in _recording(recorded, events.get(number, 0), *sizes)]
    return tuple(found)


def structure(snapshot: Snapshot) -> tuple[str, ...]:
    """Only whether columns have one length and indices point at something; cheap, and enough not to crash on."""
    return tuple(p for device in snapshot.devices for p in _shapes(device) or _indices(device, snapshot))


def _device(device: DeviceSnapshot, snapshot: Snapshot) -> list[str]:
    return _shapes(device) or _indices(device, snapshot) or [*_layout(device), *_timeline(device)]


def _shapes(device: DeviceSnapshot) -> list[str]:
    trace, segments, blocks = device.trace, device.segments, device.blocks
    columns: dict[str, tuple[NDArray[Any], ...]] = {
        "trace": (trace.action, trace.address, trace.size, trace.stream, trace.time_us, trace.stack, trace.pool),
        "segment": (segments.address, segments.total_bytes, segments.stream, segments.large, segments.expandable,
                    segments.pool, segments.stack),
        "block": (blocks.address, blocks.size, blocks.requested, blocks.state, blocks.segment, blocks.stack),
    }  # fmt: skip
    return [f"{name} columns differ in length" for name, each in columns.items() if len({len(c) for c in each}) > 1]


def _indices(device: DeviceSnapshot, snapshot: Snapshot) -> list[str]:
    trace, segments, blocks = device.trace, device.segments, device.blocks
    stacks, pools = len(snapshot.stacks.stacks), len(device.pools)
    found = []
    for name, column in (("trace", trace.stack), ("segment", segments.stack), ("block", blocks.stack)):
        if len(column) and not (column.min() >= -1 and column.max() < stacks):
            found.append(f"{name} stacks point outside the stack table")
    for name, column, low in (("trace", trace.pool, -1), ("segment", segments.pool, 0)):
        if len(column) and not (column.min() >= low and column.max() < pools):
            found.append(f"{name} pools point outside the pools")
    if len(blocks) and not (blocks.segment.min() >= 0 and blocks.segment.max() < len(segments)):
        found.append("blocks point outside the segments")
    if len(trace) and trace.size.min() < 0:
        found.append("trace sizes are negative")
    frames = len(snapshot.stacks.frames)
    if any(stack and not (min(stack) >= 0 and max(stack) < frames) for stack in snapshot.stacks.stacks):
        found.append("stacks point outside the frames")
    return found


def _layout(device: DeviceSnapshot) -> list[str]:
    """Blocks tile their segment, segments do not overlap, requests fit their blocks."""
    segments, blocks = device.segments, device.blocks
    found = []
    ends = segments.address + segments.total_bytes.astype(np.uint64)
    if np.any(segments.address[1:] < ends[:-1]):
        found.append("segments overlap or are not sorted by address")
    sums = np.zeros(len(segments), np.int64)
    np.add.at(sums, blocks.segment, blocks.size)
    if bad := int(np.count_nonzero(sums != segments.total_bytes)):
        found.append(f"the blocks of {bad} segments do not add up to their size")
    if bad := int(np.count_nonzero(blocks.address != _contiguous(device))):
        found.append(f"{bad} blocks do not start where the one before them ends")
    live = blocks.state != BlockState.INACTIVE
    if bad := int(np.count_nonzero(blocks.requested[live] > blocks.size[live])):
        found.append(f"{bad} live blocks are smaller than what was requested of them")
    if np.any(blocks.requested[~live]):
        found.append("inactive blocks carry requested bytes")
    return found


def _contiguous(device: DeviceSnapshot) -> NDArray[np.uint64]:
    """Where each block should start: its segment's address plus the sizes of the blocks before it."""
    blocks: Blocks = device.blocks
    if not len(blocks):
        return blocks.address
    before = np.concatenate([[0], np.cumsum(blocks.size)[:-1]])
    first = np.searchsorted(blocks.segment, blocks.segment)  # blocks are in the order of the segments
    offset = (before - before[first]).astype(np.uint64)
    out: NDArray[np.uint64] = device.segments.address[blocks.segment] + offset
    return out


def _timeline(device: DeviceSnapshot) -> list[str]:
    """Live bytes = allocated - freed, and the blocks at the dump are those the trace leaves alive."""
    whole = extent(device)
    if not whole.consistent:
        return [f"the trace and the segments disagree: start {whole.start}, reserved start {whole.reserved_start}"]
    found = []
    if whole.complete_from_start:
        live = live_bytes(device)
        if live.min() < 0:
            found.append(f"live bytes fall to {int(live.min())}")
    rows = lifetimes(device)
    alive = live_at(rows, len(device.trace) - 1)
    if lost := int(np.count_nonzero(rows.block[alive] < 0)):
        found.append(f"{lost} allocations of the trace are alive at its end but not among the blocks")
    at_dump = alive[rows.block[alive] >= 0]
    known = rows.birth[at_dump] >= 0
    resized = rows.requested[at_dump] != device.blocks.requested[rows.block[at_dump]]
    if bad := int(np.count_nonzero(known & resized)):
        found.append(f"{bad} allocations of the trace differ in size from their blocks")
    if whole.complete_from_start and np.any(rows.birth < 0):
        found.append(f"{int(np.count_nonzero(rows.birth < 0))} allocations are older than a trace that starts at zero")
    return found + _lifetimes(device)


def _lifetimes(device: DeviceSnapshot) -> list[str]:
    """The sum over the lifetimes is the running sum of the trace, at every event."""
    rows, never = lifetimes(device), len(device.trace)
    change = np.zeros(never + 1, np.int64)
    np.add.at(change, rows.birth + 1, rows.requested)
    gone = rows.death < never
    np.subtract.at(change, rows.death[gone] + 1, rows.requested[gone])
    live = live_bytes(device)
    differs = np.flatnonzero(np.cumsum(change) != live)
    if not len(differs):
        return []
    event = int(differs[0]) - 1
    freed = int(np.count_nonzero(device.trace.action == Action.FREE_COMPLETED))
    return [
        f"lifetimes and running sum differ from event {event} on ({freed} frees): "
        "an address was allocated twice or freed twice"
    ]


def _recording(recorded: DeviceRecording, events: int, categories: int, modules: int) -> list[str]:
    found = []
    if {len(recorded.category), len(recorded.module), len(recorded.estimated)} != {events}:
        found.append(f"the recording's columns do not have the {events} rows of the trace")
    for name, column, high in (("category", recorded.category, categories), ("module", recorded.module, modules)):
        if len(column) and not (column.min() >= -1 and column.max() < high):
            found.append(f"the recording's {name} column points outside its names")
    if [mark.event for mark in recorded.marks] != sorted(mark.event for mark in recorded.marks):
        found.append("marks are not in the order of the events")
    return found
