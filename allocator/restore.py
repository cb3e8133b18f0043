"""Put an allocator into a recorded state: the inverse of `Heap.segments`."""

from collections.abc import Iterable, Mapping

from ..snapshots.model import BlockState
from . import expandable
from .blocks import ALLOCATED, FREE, PENDING, UNMAPPED, Block, ExpandableSegment, Pool
from .heap import Heap, SegmentView
from .statistics import GIVEN_BACK, HANDED_OUT, SPLIT

Owner = tuple[tuple[int, int], bool, int]  # pool id, large, stream


def owner_of(view: SegmentView) -> Owner:
    return view.pool_id, view.large, view.stream


def restore(heap: Heap, views: Iterable[SegmentView], ranges: Mapping[Owner, Iterable[tuple[int, int]]]) -> list[Block]:
    """Fill an empty heap with `views`; statistics start there. Returns the blocks that wait for other streams.

    `ranges` has the reserved (address, size) ranges of each owner of expandable segments.
    """
    waiting: list[Block] = []
    expandable_views = []
    for view in views:
        if view.expandable:
            expandable_views.append(view)
            continue
        pool = heap.pool_pair(view.pool_id)[view.large]
        head = heap.add_segment(pool, view.address, view.total_bytes, view.stream)
        _fill(heap, head, view, waiting)
    for owner, owned in ranges.items():
        for address, size in owned:
            inside = [v for v in expandable_views if owner_of(v) == owner and address <= v.address < address + size]
            _restore_range(heap, owner, address, size, inside, waiting)
    heap.statistics.reset_peak()
    heap.statistics.reset_accumulated()
    return waiting


def _restore_range(
    heap: Heap, owner: Owner, address: int, size: int, views: list[SegmentView], waiting: list[Block]
) -> None:
    """One expandable segment: unmapped but for `views`."""
    pool_id, large, stream = owner
    pool = heap.pool_pair(pool_id)[large]
    block = expandable.add_segment(heap, ExpandableSegment(address, size, pool.page), pool, stream)
    for view in sorted(views, key=lambda view: view.address):
        pool.remove_unmapped(block)
        if view.address > block.address:
            before, block = block, heap.cut(block, view.address - block.address)
            pool.add_unmapped(before)
        rest = heap.cut(block, view.total_bytes) if block.size > view.total_bytes else None
        block.state = FREE
        heap.statistics.memory_obtained(pool.large, view.total_bytes)
        _fill(heap, block, view, waiting)
        if rest is None:
            return
        rest.state = UNMAPPED
        pool.add_unmapped(rest)
        block = rest


def _fill(heap: Heap, block: Block, view: SegmentView, waiting: list[Block]) -> None:
    """Cut one block that spans the view into the view's blocks."""
    for shown in view.blocks:
        rest = heap.cut(block, shown.size) if block.size > shown.size else None
        _set_state(heap, block.pool, block, shown.state, shown.requested, len(view.blocks) > 1)
        if shown.state is BlockState.ACTIVE_PENDING_FREE:
            waiting.append(block)
        if rest is None:
            return
        block = rest


def _set_state(heap: Heap, pool: Pool, block: Block, state: BlockState, requested: int, is_split: bool) -> None:
    notes = heap.statistics.notes
    block.state = _STATES[state]
    if block.state == FREE:
        pool.add(block)
        if is_split and block.expandable is None:
            notes += (SPLIT << 1 | pool.large, block.size, 1)
        return
    block.requested = requested
    notes += (HANDED_OUT << 1 | pool.large, block.size, requested)
    if block.state == PENDING:
        notes += (GIVEN_BACK << 1 | pool.large, block.size, 0)
        return
    heap.statistics.allocated_bytes += block.size
    if block.size >= heap.max_split:
        heap.statistics.oversize_allocations.increase(1)


_STATES = {
    BlockState.INACTIVE: FREE,
    BlockState.ACTIVE_ALLOCATED: ALLOCATED,
    BlockState.ACTIVE_PENDING_FREE: PENDING,
}
