"""Free memory inside the segments at one event: the segments rewound to it, minus the blocks live then."""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..snapshots.model import Action, DeviceSnapshot

ROUNDING_BYTES = 512  # kMinBlockSize of CUDACachingAllocator.cpp
SMALL_REQUEST_BYTES = 1 << 20  # kSmallSize: larger requests come from the large pool
SMALL_SEGMENT_BYTES = 2 << 20  # kSmallBuffer: a segment of the small pool


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of driver memory that blocks can merge within."""

    start: int
    end: int
    stream: int
    large: bool
    expandable: bool


@dataclass(frozen=True, slots=True)
class Hole:
    address: int
    bytes: int
    stream: int
    large: bool


def round_up(requested_bytes: int) -> int:
    """What the allocator makes of a request (default settings)."""
    return max(ROUNDING_BYTES, -(-requested_bytes // ROUNDING_BYTES) * ROUNDING_BYTES)


def spans_at(device: DeviceSnapshot, event: int) -> list[Span]:
    """The segments as they were just after `event` (-1 = before the first), by address."""
    segments, trace = device.segments, device.trace
    spans = [
        Span(int(a), int(a) + int(n), int(s), bool(large), bool(e))
        for a, n, s, large, e in zip(
            segments.address, segments.total_bytes, segments.stream, segments.large, segments.expandable, strict=True
        )
    ]
    spans.sort(key=lambda span: span.start)
    later = np.arange(len(trace)) > event
    moves = np.flatnonzero(later & (trace.action >= Action.SEGMENT_ALLOC) & (trace.action <= Action.SEGMENT_UNMAP))
    for index in moves[::-1].tolist():
        start, size, stream = int(trace.address[index]), int(trace.size[index]), int(trace.stream[index])
        action = trace.action[index]
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            _take(spans, start, start + size)
        else:
            mapped = action == Action.SEGMENT_UNMAP
            _put(spans, Span(start, start + size, stream, size != SMALL_SEGMENT_BYTES, mapped))
    return spans


def _take(spans: list[Span], start: int, end: int) -> None:
    at = bisect_right(spans, start, key=lambda span: span.start) - 1
    while 0 <= at < len(spans) and spans[at].start < end:
        span = spans[at]
        if span.end <= start:
            at += 1
            continue
        pieces = []
        if span.start < start:
            pieces.append(Span(span.start, start, span.stream, span.large, span.expandable))
        if span.end > end:
            pieces.append(Span(end, span.end, span.stream, span.large, span.expandable))
        spans[at : at + 1] = pieces
        at += len(pieces)


def _put(spans: list[Span], new: Span) -> None:
    at = bisect_right(spans, new.start, key=lambda span: span.start)
    if new.expandable and at < len(spans) and spans[at].start == new.end and spans[at].expandable:
        after = spans.pop(at)
        new = Span(new.start, after.end, after.stream, after.large, True)
    if new.expandable and at > 0 and spans[at - 1].end == new.start and spans[at - 1].expandable:
        before = spans.pop(at - 1)
        at -= 1
        new = Span(before.start, new.end, before.stream, before.large, True)
    spans.insert(at, new)


def holes(spans: list[Span], address: NDArray[np.uint64], block_bytes: NDArray[np.int64]) -> list[Hole]:
    """What the live blocks (any order) leave free in each span, by address. Neighbouring free blocks are one hole:
    the allocator merges them."""
    order = np.argsort(address, kind="stable")
    starts, sizes = address[order].tolist(), block_bytes[order].tolist()
    found: list[Hole] = []
    at = 0
    for span in spans:
        cursor = span.start
        while at < len(starts) and starts[at] < span.start:
            at += 1
        while at < len(starts) and starts[at] < span.end:
            if starts[at] > cursor:
                found.append(Hole(cursor, starts[at] - cursor, span.stream, span.large))
            cursor = max(cursor, starts[at] + sizes[at])
            at += 1
        if cursor < span.end:
            found.append(Hole(cursor, span.end - cursor, span.stream, span.large))
    return found
