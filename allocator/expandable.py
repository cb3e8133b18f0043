"""Expandable segments: one address range per stream and pool, with memory mapped behind it page by page.

Pages are 2 MiB in the small pool and 20 MiB in the large one. A request maps only what is missing behind the free end
of the range, so blocks pack densely; giving memory back unmaps the whole pages inside free blocks.
"""

from ..snapshots.model import Action
from .blocks import FREE, UNMAPPED, Block, ExpandableSegment, Pool
from .heap import Heap


def allocate(heap: Heap, pool: Pool, size: int, stream: int) -> Block | None:
    """A free block, in no list, of at least `size` bytes, mapping what is missing; None = out of memory.

    Pages mapped before the failing one stay mapped, as in PyTorch.
    """
    block = _find_room(heap, pool, size, stream)
    if block.state == UNMAPPED:
        mapped = _map(heap, block, min(block.size, size))
        if mapped is None:
            return None
        block = mapped
    while block.size < size:
        following = block.next
        assert following is not None
        mapped = _map(heap, following, min(size - block.size, following.size))
        if mapped is None:
            return None
        block = mapped
    pool.remove(block)
    return block


def unmap(heap: Heap, block: Block) -> None:
    """Give the whole pages inside a free block back; drop the segment when nothing is mapped any more."""
    segment, pool = block.expandable, block.pool
    assert segment is not None
    start = block.address + (segment.address - block.address) % segment.page
    size = (block.address + block.size - start) // segment.page * segment.page
    if size > 0:
        pool.remove(block)
        if start > block.address:
            before, block = block, heap.cut(block, start - block.address)
            pool.add(before)
        if block.size > size:
            pool.add(heap.cut(block, size))
        heap.driver.unmap(start, size)
        block.state = UNMAPPED
        block = _merge_unmapped(heap, block)
        pool.add_unmapped(block)
        heap.statistics.memory_released(pool.large, size)
        heap.statistics.num_device_free += 1
        if heap.emit_segment is not None:
            heap.emit_segment(Action.SEGMENT_UNMAP, start, size, block.stream)
    if not block.is_split and block.state == UNMAPPED:
        pool.remove_unmapped(block)
        del heap.blocks[block.address], heap.heads[block.address]
        heap.driver.release(segment.address, segment.size)


def _find_room(heap: Heap, pool: Pool, size: int, stream: int) -> Block:
    """The lowest run of free or unmapped blocks with room for `size`; a new segment when there is none."""
    for address in pool.unmapped.get(stream, ()):
        block = heap.blocks[address]
        if block.prev is not None and not block.prev.in_use:
            block = block.prev
        if _has_room(block, size):
            return block
    room = range_bytes(heap, pool, size)
    return add_segment(heap, ExpandableSegment(heap.driver.reserve(room), room, pool.page), pool, stream)


def range_bytes(heap: Heap, pool: Pool, size: int = 0) -> int:
    """Addresses that a new segment reserves: 9/8 of the device, in whole pages, and at least `size`."""
    return -(-max(heap.total_bytes + heap.total_bytes // 8, size) // pool.page) * pool.page


def add_segment(heap: Heap, segment: ExpandableSegment, pool: Pool, stream: int) -> Block:
    """One unmapped block that spans the reserved range."""
    block = Block(segment.address, segment.size, stream, pool)
    block.expandable = segment
    block.state = UNMAPPED
    heap.blocks[block.address] = heap.heads[block.address] = block
    pool.free.setdefault(stream, [])
    pool.add_unmapped(block)
    return block


def _has_room(block: Block, size: int) -> bool:
    room, following = 0, block
    while room < size:
        room += following.size
        if following.next is None or following.next.in_use:
            break
        following = following.next
    return room >= size


def _map(heap: Heap, block: Block, size: int) -> Block | None:
    """Map the low `size` bytes of an unmapped block, rounded up to pages; the free block that holds them."""
    assert block.expandable is not None
    address, pool = block.address, block.pool
    size = -(-size // block.expandable.page) * block.expandable.page
    if not heap.driver.map(address, size):
        return None
    pool.remove_unmapped(block)
    block.state = FREE
    if size < block.size:
        rest = heap.cut(block, size)
        rest.state = UNMAPPED
        pool.add_unmapped(rest)
    block = _merge_free(heap, block)
    pool.add(block)
    heap.statistics.memory_obtained(pool.large, size)
    heap.statistics.num_device_alloc += 1
    if heap.emit_segment is not None:
        heap.emit_segment(Action.SEGMENT_MAP, address, size, block.stream)
    return block


def _merge_free(heap: Heap, block: Block) -> Block:
    """Merge a mapped, unlisted block with its free mapped neighbours."""
    before, after = block.prev, block.next
    if before is not None and before.state == FREE:
        block.pool.remove(before)
        heap.absorb(before, block)
        block = before
    if after is not None and after.state == FREE:
        block.pool.remove(after)
        heap.absorb(block, after)
    return block


def _merge_unmapped(heap: Heap, block: Block) -> Block:
    before, after = block.prev, block.next
    if before is not None and before.state == UNMAPPED:
        block.pool.remove_unmapped(before)
        heap.absorb(before, block)
        block = before
    if after is not None and after.state == UNMAPPED:
        block.pool.remove_unmapped(after)
        heap.absorb(block, after)
    return block
