"""The memory that the allocator holds: segments cut into blocks, and the steps that change them.

This is mechanism without policy: which block to take, and what to give back when the driver has no more, is decided in
`machine`. Every step keeps the blocks of a segment contiguous and the statistics and trace events right.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..snapshots.model import Action, BlockState
from .blocks import ADDRESS_BITS, ALLOCATED, DEFAULT_POOL, FREE, PENDING, UNLIMITED, UNMAPPED, Block, Pool, PoolId
from .config import SMALL_SIZE, AllocatorConfig
from .driver import Driver
from .statistics import INACTIVE, SPLIT, Statistics

Emit = Callable[[Action, int, int, int], object]  # action, address, size, stream
FREE_COMPLETED = Action.FREE_COMPLETED


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block of a segment, as a snapshot shows it."""

    address: int
    size: int
    requested: int  # 0 when inactive
    state: BlockState


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One contiguous range of driver memory, as a snapshot shows it."""

    address: int
    total_bytes: int
    stream: int
    large: bool
    expandable: bool
    pool_id: PoolId
    blocks: tuple[BlockView, ...]


class Heap:
    """Segments and blocks of one device. Attributes are for this room; other rooms use `machine.Allocator`."""

    def __init__(
        self, config: AllocatorConfig, driver: Driver, total_bytes: int, emit: Emit | None, emit_segment: Emit | None
    ) -> None:
        self.config = config
        self.driver = driver
        self.total_bytes = total_bytes
        self.emit_block = emit  # alloc, free_requested, free_completed, oom
        self.emit_segment = emit_segment
        self.statistics = Statistics()
        self.max_split = UNLIMITED if config.max_split_size is None else config.max_split_size
        self.pools: dict[PoolId, tuple[Pool, Pool]] = {}  # small, large
        self.small, self.large = self.pool_pair(DEFAULT_POOL)
        self.blocks: dict[int, Block] = {}  # every block, by address
        self.heads: dict[int, Block] = {}  # the first block of every segment, by address

    def pool_pair(self, pool_id: PoolId) -> tuple[Pool, Pool]:
        """The small and the large pool of `pool_id`; new ones at its first use."""
        if pool_id not in self.pools:
            config = self.config
            small, large = (Pool(pool_id, kind, config.page_size(kind)) for kind in (False, True))
            if not config.expandable_segments:
                large.min_rest = SMALL_SIZE + 1
                large.split_below = self.max_split
            self.pools[pool_id] = (small, large)
        return self.pools[pool_id]

    # ---- cutting and merging

    def cut(self, block: Block, size: int) -> Block:
        """Keep the low `size` bytes in `block`; the rest becomes a block of its own, in no list yet."""
        rest = Block(block.address + size, block.size - size, block.stream, block.pool)
        rest.expandable = block.expandable
        block.size = size
        rest.prev = block
        rest.next = block.next
        if rest.next is not None:
            rest.next.prev = rest
        block.next = rest
        self.blocks[rest.address] = rest
        return rest

    def absorb(self, block: Block, after: Block) -> None:
        """`after`, the right neighbour, becomes part of `block`."""
        del self.blocks[after.address]
        block.size += after.size
        block.next = after.next
        if after.next is not None:
            after.next.prev = block

    def split(self, block: Block, size: int) -> None:
        """Cut the block that a request of `size` bytes gets; the rest is free for the next one."""
        was_split = block.prev is not None or block.next is not None
        rest = self.cut(block, size)
        pool = rest.pool
        rest.pooled_at = pool.searches
        insort(pool.free[rest.stream], rest.size << ADDRESS_BITS | rest.address)
        if block.expandable is None:
            if was_split:
                self.statistics.notes += (SPLIT << 1 | pool.large, -size, 0)
            else:
                self.statistics.notes += (SPLIT << 1 | pool.large, rest.size, 1)

    def return_to_pool(self, block: Block) -> None:
        """Nothing uses the block any more: merge it with its free neighbours and make it available."""
        pool, size, stream = block.pool, block.size, block.stream
        keys = pool.free[stream]
        if self.emit_block is not None:
            self.emit_block(FREE_COMPLETED, block.address, block.requested, stream)
        statistics = self.statistics
        statistics.notes += (INACTIVE << 1 | pool.large, size, block.requested)
        merged = merged_bytes = 0
        prev, after = block.prev, block.next
        if prev is not None and prev.state == FREE:
            merged, merged_bytes = 1, prev.size
            del keys[bisect_left(keys, prev.size << ADDRESS_BITS | prev.address)]
            self.absorb(prev, block)
            block = prev
        if after is not None and after.state == FREE:
            merged, merged_bytes = merged + 1, merged_bytes + after.size
            del keys[bisect_left(keys, after.size << ADDRESS_BITS | after.address)]
            self.absorb(block, after)
        block.state = FREE
        block.pooled_at = pool.searches
        insort(keys, block.size << ADDRESS_BITS | block.address)
        if block.expandable is not None:
            return
        if block.prev is not None or block.next is not None:
            statistics.notes += (SPLIT << 1 | pool.large, block.size - merged_bytes, 1 - merged)
        elif merged:
            statistics.notes += (SPLIT << 1 | pool.large, -merged_bytes, -merged)

    # ---- segments

    def new_segment(self, pool: Pool, size: int, stream: int) -> Block | None:
        """One free block, in no list yet, of `size` bytes from the driver; None = the driver has no more."""
        address = self.driver.malloc(size)
        if address is None:
            return None
        block = self.add_segment(pool, address, size, stream)
        self.statistics.num_device_alloc += 1
        if self.emit_segment is not None:
            self.emit_segment(Action.SEGMENT_ALLOC, address, size, stream)
        return block

    def add_segment(self, pool: Pool, address: int, size: int, stream: int) -> Block:
        """One block, in no list yet, for memory from the driver."""
        block = Block(address, size, stream, pool)
        self.blocks[address] = self.heads[address] = block
        pool.free.setdefault(stream, [])
        self.statistics.segment_obtained(pool.large, size)
        if size >= self.max_split:
            self.statistics.oversize_segments.increase(1)
        return block

    def release_segment(self, block: Block) -> None:
        """Give a segment that is one free block back to the driver."""
        pool, size = block.pool, block.size
        if self.emit_segment is not None:
            self.emit_segment(Action.SEGMENT_FREE, block.address, size, block.stream)
        self.driver.free(block.address, size)
        pool.remove(block)
        del self.blocks[block.address], self.heads[block.address]
        self.statistics.num_device_free += 1
        self.statistics.segment_released(pool.large, size)
        if size >= self.max_split:
            self.statistics.oversize_segments.decrease(1)

    # ---- looking

    def chain(self, head: Block) -> Iterator[Block]:
        """The blocks of one segment, by address."""
        block: Block | None = head
        while block is not None:
            yield block
            block = block.next

    def segments(self) -> Iterator[SegmentView]:
        """Every contiguous range of memory with its blocks, by address."""
        for address in sorted(self.heads):
            run: list[Block] = []
            for block in self.chain(self.heads[address]):
                if block.state != UNMAPPED:
                    run.append(block)
                elif run:
                    yield _segment_view(run)
                    run = []
            if run:
                yield _segment_view(run)


def _segment_view(run: list[Block]) -> SegmentView:
    first = run[0]
    return SegmentView(
        first.address,
        sum(block.size for block in run),
        first.stream,
        first.pool.large,
        first.expandable is not None,
        first.pool.pool_id,
        tuple(map(_block_view, run)),
    )


_SHOWN = {ALLOCATED: BlockState.ACTIVE_ALLOCATED, PENDING: BlockState.ACTIVE_PENDING_FREE, FREE: BlockState.INACTIVE}


def _block_view(block: Block) -> BlockView:
    return BlockView(block.address, block.size, block.requested if block.in_use else 0, _SHOWN[block.state])
