"""The allocator's state before the first event of a trace, found by undoing the trace from its end.

The snapshot knows the size of blocks that are live at the end; a block older than the trace that is freed in it is
known by its requested bytes only, and in the large pool it may have kept an unsplit rest of up to 1 MiB. That rest is
known when an allocation lands right behind it while it lives (free memory is used from its low end), and when at most
1 MiB of room is there (no free block of the large pool is that small). Where neither happens no recording can tell;
such blocks are taken without a rest, and named in `uncertain`.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..snapshots.model import BlockState, DeviceSnapshot
from .config import SMALL_SIZE, AllocatorConfig
from .heap import BlockView, SegmentView
from .lives import Lives, OldBlock, lives
from .pages import pool_of, reserved_ranges
from .restore import Owner, owner_of
from .rewind import Past, event_pools, undo


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """What the allocator held before the first event."""

    segments: tuple[SegmentView, ...]
    ranges: dict[Owner, list[tuple[int, int]]]  # reserved address ranges of expandable segments
    range_bytes: int  # such a range is not larger than this
    event_pools: list[int] | None  # per event, index into DeviceSnapshot.pools; None = all in the default pool
    uncertain: tuple[int, ...]  # addresses of older blocks that may have had an unsplit rest
    contradiction: str | None  # why trace and segments do not belong together


def rebuild(device: DeviceSnapshot, config: AllocatorConfig) -> StartState:
    """The state before the first event. A contradiction is reported, not raised; the rest is done as far as it goes."""
    past = undo(device, config)
    found = lives(device)
    past.contradictions += found.contradictions
    segments, uncertain = _views(past, device, found)
    ranges, range_bytes = reserved_ranges(past.pages, segments, device.pools, config)
    for view in segments:
        end = view.address + view.total_bytes
        if view.expandable and not any(low <= view.address and end <= low + n for low, n in ranges[owner_of(view)]):
            past.contradictions.append((-1, f"the expandable segment at {view.address:#x} reaches into another one"))
    latest = max(past.contradictions, default=None)
    return StartState(
        segments=segments,
        ranges=ranges,
        range_bytes=range_bytes,
        event_pools=event_pools(device),
        uncertain=uncertain,
        contradiction=None if latest is None else (f"event {latest[0]}: " if latest[0] >= 0 else "") + latest[1],
    )


def _views(past: Past, device: DeviceSnapshot, found: Lives) -> tuple[tuple[SegmentView, ...], tuple[int, ...]]:
    """Segments with their blocks, by address, and the addresses of blocks whose size is not certain."""
    views: list[SegmentView] = []
    uncertain: list[int] = []
    order = list(found.older)
    held = 0
    for start, size, stream, large, is_expandable, pool in past.spans():
        inside = order[bisect_left(order, start) : bisect_left(order, start + size)]
        held += len(inside)
        sizes = _Sizes(past.config, found, start + size, large and not is_expandable)
        blocks = tuple(_block_views(past, found, start, inside, sizes, uncertain))
        views.append(SegmentView(start, size, stream, large, is_expandable, pool_of(device.pools, pool), blocks))
    if held != len(order):
        past.contradictions.append((-1, "blocks older than the trace lie outside every segment"))
    return tuple(views), tuple(uncertain)


def _block_views(
    past: Past, found: Lives, start: int, inside: list[int], sizes: "_Sizes", uncertain: list[int]
) -> Iterator[BlockView]:
    position = start
    for index, address in enumerate(inside):
        block = found.older[address]
        if address < position or (block.size or block.requested) <= 0:
            past.contradictions.append((-1, f"blocks older than the trace exclude each other at {address:#x}"))
            continue
        if address > position:
            yield BlockView(position, address - position, 0, BlockState.INACTIVE)
        room = (inside[index + 1] if index + 1 < len(inside) else sizes.end) - address
        size, certain = sizes.of(address, block, room)
        if not certain:
            uncertain.append(address)
        size = min(size, room)
        yield BlockView(
            address,
            size,
            block.requested,
            BlockState.ACTIVE_PENDING_FREE if block.pending else BlockState.ACTIVE_ALLOCATED,
        )
        position = address + size
    if position < sizes.end:
        yield BlockView(position, sizes.end - position, 0, BlockState.INACTIVE)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Block bytes of older blocks in one segment that ends at `end`."""

    config: AllocatorConfig
    found: Lives
    end: int
    keeps_rest: bool  # a rest of up to 1 MiB stays with the block: large pool, not expandable

    def of(self, address: int, block: OldBlock, room: int) -> tuple[int, bool]:
        """Bytes of the block at `address` with `room` up to its next older neighbour, and whether they are certain."""
        if block.size is not None:
            return block.size, True
        rounded = self.config.round_size(block.requested)
        if not self.keeps_rest or room == rounded:
            return rounded, True
        if self.config.max_split_size is not None and rounded >= self.config.max_split_size:
            return room, True  # never split: the block is the whole segment
        behind = self._first_behind(address + rounded, block.death)
        if behind is not None:
            return behind - address, True
        if room - rounded <= SMALL_SIZE:
            return room, True  # no free block of the large pool is that small
        return rounded, False

    def _first_behind(self, start: int, death: int) -> int | None:
        """Where an allocation lands at most 1 MiB behind `start` before event `death`. Nothing fits in between."""
        addresses, events = self.found.alloc_address, self.found.alloc_event
        stop = min(start + SMALL_SIZE, self.end - 1)
        rows = slice(np.searchsorted(addresses, np.uint64(start)), np.searchsorted(addresses, np.uint64(stop), "right"))
        before = addresses[rows][events[rows] < death]
        return int(before[0]) if len(before) else None
