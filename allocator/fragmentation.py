"""What is free inside the segments, and what keeps it there.

Works on `SegmentView`s: of a live allocator (`Allocator.segments`), or of a recording at one event (`replay.heap_at`,
`rewind.heap_with`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..snapshots.model import BlockState
from .blocks import DEFAULT_POOL, PoolId
from .config import SMALL_SIZE, AllocatorConfig
from .heap import BlockView, SegmentView


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the cached bytes stand to one request; the three parts sum to all free bytes inside the segments.

    `reusable`: blocks that would serve it. `releasable`: whole segments and pages that a retry gives back to the
    driver, for this request or another. `fragmented`: the rest, which helps this request in no way.
    """

    request: int  # rounded, bytes
    reusable: int
    releasable: int
    fragmented: int
    largest_free_block: int  # of any stream and pool
    largest_usable_block: int  # of the request's own stream and pool

    @property
    def free(self) -> int:
        return self.reusable + self.releasable + self.fragmented


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A segment with free bytes that its live blocks keep from being used for anything larger, or given back."""

    segment: SegmentView
    free: int
    live: int
    holders: tuple[BlockView, ...]  # the live blocks, by address


def fit(
    segments: Iterable[SegmentView],
    config: AllocatorConfig,
    requested: int,
    stream: int = 0,
    pool_id: PoolId = DEFAULT_POOL,
) -> Fit:
    """How the free blocks of `segments` stand to a request of `requested` bytes."""
    rounded = config.round_size(requested)
    kind = (pool_id, rounded > SMALL_SIZE, stream)
    total = reusable = releasable = largest = usable_largest = 0
    for segment in segments:
        usable = (segment.pool_id, segment.large, segment.stream) == kind
        for block in segment.blocks:
            if block.state is not BlockState.INACTIVE:
                continue
            total += block.size
            largest = max(largest, block.size)
            if usable:
                usable_largest = max(usable_largest, block.size)
            if usable and block.size >= rounded:
                reusable += block.size
            else:
                releasable += _releasable(segment, block, config)
    return Fit(
        request=rounded,
        reusable=reusable,
        releasable=releasable,
        fragmented=total - reusable - releasable,
        largest_free_block=largest,
        largest_usable_block=usable_largest,
    )


def pinned(segments: Iterable[SegmentView], at_least: int = 1 << 20) -> tuple[Pinned, ...]:
    """Segments with `at_least` that many free bytes beside live blocks, the most free bytes first.

    Expandable segments are left out: their free pages go back to the driver by themselves.
    """
    rows = []
    for segment in segments:
        holders = tuple(block for block in segment.blocks if block.state is not BlockState.INACTIVE)
        live = sum(block.size for block in holders)
        free = segment.total_bytes - live
        if holders and not segment.expandable and free >= at_least:
            rows.append(Pinned(segment=segment, free=free, live=live, holders=holders))
    return tuple(sorted(rows, key=lambda row: -row.free))


def _releasable(segment: SegmentView, block: BlockView, config: AllocatorConfig) -> int:
    """Bytes of a free block that a retry gives back: the whole segment, or whole pages of an expandable one."""
    if segment.pool_id != DEFAULT_POOL:
        return 0
    if not segment.expandable:
        return block.size if block.size == segment.total_bytes else 0
    page = config.page_size(segment.large)
    start = -(-(block.address - segment.address) // page) * page
    end = (block.address + block.size - segment.address) // page * page
    return max(end - start, 0)
