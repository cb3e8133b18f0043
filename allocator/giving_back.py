"""Which cached memory goes back to the driver: at a retry, by garbage collection, when the cache is emptied.

Rules: garbage_collect_cached_blocks, release_available_cached_blocks and release_blocks of
c10/cuda/CUDACachingAllocator.cpp. All sizes are bytes.
"""

from . import expandable
from .blocks import ADDRESS_BITS, ADDRESS_MASK, UNLIMITED, Block, Pool
from .heap import Heap


def is_whole_segment(block: Block) -> bool:
    return block.expandable is None and not block.is_split


def release_old_segments(heap: Heap, surplus: int) -> None:
    """Garbage collection: cached large segments of at least average age go until `surplus` is gone."""
    pool = heap.large
    cached = [block for block in map(heap.blocks.__getitem__, pool.addresses()) if is_whole_segment(block)]
    while surplus > 0 and cached:
        average = sum(pool.searches - block.pooled_at for block in cached) / len(cached)
        old = [block for block in cached if pool.searches - block.pooled_at >= average]
        cached = [block for block in cached if pool.searches - block.pooled_at < average]
        for block in old:
            surplus -= block.size
            heap.release_segment(block)


def oversize_to_release(heap: Heap, pool: Pool, size: int, stream: int) -> tuple[list[Block], bool]:
    """With max_split_size: the one oversize block that makes room, else oversize ones, largest first.

    Also whether they suffice; PyTorch frees them either way.
    """
    if heap.max_split == UNLIMITED:
        return [], False
    wanted = max(size, heap.max_split)
    oversize = [
        block
        for key in pool.free.get(stream, ())
        if key >> ADDRESS_BITS >= heap.max_split and is_whole_segment(block := heap.blocks[key & ADDRESS_MASK])
    ]
    for block in oversize:
        if block.size >= wanted:
            return [block], True
    chosen: list[Block] = []
    while oversize and sum(block.size for block in chosen) < wanted:
        chosen.append(oversize.pop())
    return chosen, sum(block.size for block in chosen) >= wanted


def release_oversize(heap: Heap, pool: Pool, size: int, stream: int) -> bool:
    chosen, suffices = oversize_to_release(heap, pool, size, stream)
    for block in chosen:
        heap.release_segment(block)
    return suffices


def release_free(heap: Heap, pool: Pool) -> None:
    """Every segment of the pool that is one free block, and every free page."""
    growing = []
    for block in [heap.blocks[address] for address in pool.addresses()]:
        if block.expandable is not None:
            growing.append(block)
        elif not block.is_split:
            heap.release_segment(block)
    for block in growing:
        expandable.unmap(heap, block)
