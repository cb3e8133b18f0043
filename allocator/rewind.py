"""Segments of a recording at any event, found by undoing its trace, and the heap that live blocks make of them."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ..snapshots.model import Action, BlockState, DeviceSnapshot
from .blocks import PoolId
from .config import MIN_LARGE_ALLOC, SMALL_BUFFER, AllocatorConfig
from .heap import BlockView, SegmentView
from .pages import Pages, pool_of


@dataclass(slots=True)
class Segment:
    size: int
    stream: int
    large: bool
    pool: int


@dataclass(slots=True)
class Past:
    """Segments while a trace is undone, and what did not fit."""

    config: AllocatorConfig
    segments: dict[int, Segment] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)  # sorted keys of `segments`
    pages: Pages = field(default_factory=Pages)
    contradictions: list[tuple[int, str]] = field(default_factory=list)

    def spans(self) -> list[tuple[int, int, int, bool, bool, int]]:
        """(address, bytes, stream, large, expandable, pool) of each segment, by address."""
        fixed = [(start, s.size, s.stream, s.large, False, s.pool) for start, s in self.segments.items()]
        pages = self.pages.ranges.items()
        return sorted(
            [*fixed, *((at, end - at, stream, large, True, pool) for at, (end, stream, pool, large) in pages)]
        )

    def overlaps(self, start: int, size: int) -> bool:
        """Whether a segment or a page lies in this range."""
        index = bisect_left(self.starts, start + size) - 1
        if index >= 0 and start < self.starts[index] + self.segments[self.starts[index]].size:
            return True
        return self.pages.overlaps(start, size)


def undo(device: DeviceSnapshot, config: AllocatorConfig, event: int = -1) -> Past:
    """The segments just after `event` (-1 = before the first). What contradicts them is kept beside."""
    past = Past(config)
    _load_segments(past, device)
    _undo_segments(past, device, event + 1)
    return past


def heap_with(
    device: DeviceSnapshot, config: AllocatorConfig, event: int, live: Iterable[BlockView]
) -> tuple[SegmentView, ...]:
    """The segments just after `event`, cut into the `live` blocks of that moment and what they leave free.

    No request is replayed, so this needs no complete recording, and it stands where the model departs
    (`replay.heap_at` is the model's own state). Of blocks that exclude each other, which no allocator has, the lower
    one counts whole.
    """
    order = sorted(live, key=lambda block: block.address)
    starts = [block.address for block in order]
    views = []
    for start, size, stream, large, expandable, pool in undo(device, config, event).spans():
        inside = order[bisect_left(starts, start) : bisect_left(starts, start + size)]
        blocks = tuple(_cut(start, start + size, inside))
        views.append(SegmentView(start, size, stream, large, expandable, pool_of(device.pools, pool), blocks))
    return tuple(views)


def _cut(start: int, end: int, live: Iterable[BlockView]) -> Iterator[BlockView]:
    """The blocks of one segment. Neighbouring free blocks are one: the allocator merges them."""
    for block in live:
        if block.address > start:
            yield BlockView(start, block.address - start, 0, BlockState.INACTIVE)
        elif block.address < start:
            continue
        size = min(block.size, end - block.address)
        yield BlockView(block.address, size, block.requested, block.state)
        start = block.address + size
    if start < end:
        yield BlockView(start, end - start, 0, BlockState.INACTIVE)


def pool_at(device: DeviceSnapshot, event: int) -> PoolId:
    """The pool of the request at `event`."""
    pools = event_pools(device)
    return pool_of(device.pools, 0 if pools is None else pools[event])


def event_pools(device: DeviceSnapshot) -> list[int] | None:
    """The pool of each event: as recorded, else that of the final segment around it; None = only the default one."""
    if len(device.pools) <= 1:
        return None
    trace, segments = device.trace, device.segments
    order = np.argsort(segments.address)
    starts = segments.address[order]
    obtained = np.flatnonzero(trace.action == Action.SEGMENT_ALLOC)
    since = dict(zip(trace.address[obtained].tolist(), obtained.tolist(), strict=True))
    born = np.array([since.get(start, -1) for start in starts.tolist()], np.int64)
    at = np.searchsorted(starts, trace.address, "right") - 1
    segment = order[np.maximum(at, 0)] if len(order) else np.zeros(len(trace), np.intp)
    ends = starts + segments.total_bytes[order].astype(np.uint64)
    inside = (at >= 0) & (trace.address < ends[np.maximum(at, 0)]) & (np.arange(len(trace)) > born[np.maximum(at, 0)])
    pools = np.where(trace.pool >= 0, trace.pool, np.where(inside, segments.pool[segment], 0))
    return [int(pool) for pool in pools]


def _load_segments(past: Past, device: DeviceSnapshot) -> None:
    columns = device.segments
    rows = zip(
        columns.address.tolist(),
        columns.total_bytes.tolist(),
        columns.stream.tolist(),
        columns.large.tolist(),
        columns.expandable.tolist(),
        columns.pool.tolist(),
        strict=True,
    )
    for address, size, stream, large, is_expandable, pool in rows:
        if size <= 0 or past.overlaps(address, size):
            past.contradictions.append((len(device.trace), f"the segment at {address:#x} lies in another one"))
        elif is_expandable:
            past.pages.add(address, size, stream, pool, large)
        else:
            past.segments[address] = Segment(size, stream, large, pool)
            insort(past.starts, address)


def _undo_segments(past: Past, device: DeviceSnapshot, since: int) -> None:
    action = device.trace.action[since:]
    events = np.flatnonzero((action >= Action.SEGMENT_ALLOC) & (action <= Action.SEGMENT_UNMAP)) + since
    for event in events[::-1].tolist():
        what = _undo_segment(past, event, device)
        if what is not None:
            past.contradictions.append((event, what))


def _undo_segment(past: Past, event: int, device: DeviceSnapshot) -> str | None:
    """Undo one segment event; what contradicts it, if anything does."""
    trace = device.trace
    action, address, size = int(trace.action[event]), int(trace.address[event]), int(trace.size[event])
    stream, pool = int(trace.stream[event]), max(int(trace.pool[event]), 0)
    if action == Action.SEGMENT_ALLOC:
        segment = past.segments.pop(address, None)
        if segment is not None:
            del past.starts[bisect_left(past.starts, address)]
        if segment is None or segment.size != size:
            return f"obtains a segment of {size} bytes at {address:#x} that is not there afterwards"
    elif action == Action.SEGMENT_MAP:
        if not past.pages.remove(address, size):
            return f"maps {size} bytes at {address:#x} that are not there afterwards"
    elif size <= 0 or past.overlaps(address, size):
        return f"gives back {size} bytes at {address:#x} that are still there afterwards"
    elif action == Action.SEGMENT_FREE:
        past.segments[address] = Segment(size, stream, size >= MIN_LARGE_ALLOC, pool)
        insort(past.starts, address)
    else:
        large = size != SMALL_BUFFER and size % past.config.large_segment_size == 0
        past.pages.undo_unmap(address, size, stream, (pool, large))
    return None
