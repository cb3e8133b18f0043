"""PyTorch's CUDA caching allocator for one device, as a state machine that emits PyTorch's trace events.

Rules: c10/cuda/CUDACachingAllocator.cpp (v2.6.0 to 2.14). A request is rounded up and served from the smallest free
block of its own stream that is large enough, lowest address first; else with new memory from the driver; else, in this
order, after collecting garbage, freeing oversize blocks, freeing everything cached. Freed blocks merge with free
neighbours of their segment. Sizes and counters are bytes. The machine has no clock: work on other streams
(`record_stream`) is taken as finished at the next `malloc`, unless `defer_streams` is set and the caller says when.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..snapshots.model import Action
from . import expandable
from .blocks import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    ALLOCATED,
    DEFAULT_POOL,
    FREE,
    PENDING,
    UNLIMITED,
    UNMAPPED,
    Block,
    Pool,
    PoolId,
)
from .config import SMALL_SIZE, AllocatorConfig
from .driver import Driver, VirtualDriver
from .giving_back import is_whole_segment, oversize_to_release, release_free, release_old_segments, release_oversize
from .heap import Emit, Heap, SegmentView
from .restore import Owner, restore
from .statistics import FOLD_AT, GIVEN_BACK, HANDED_OUT, SPLIT
from .streams import CrossStreamUses

ALLOC, FREE_REQUESTED = Action.ALLOC, Action.FREE_REQUESTED
MANY_BYTES = 1 << 46  # the capacity of an allocator that was given none


@dataclass(eq=False)
class OutOfMemory(Exception):  # noqa: N818  (torch.OutOfMemoryError's own name)
    """No memory after every retry. All values are bytes, at the moment of failure."""

    requested: int  # what the tensor asked for
    rounded: int  # the block it needs; the size of the `oom` trace event
    tried: int  # what cudaMalloc was asked for; PyTorch prints "Tried to allocate" this
    device_free: int  # what the driver still had
    allocated: int
    reserved: int
    allowed: int | None = None  # the limit of set_per_process_memory_fraction

    def __str__(self) -> str:
        return f"tried {self.tried} bytes for a request of {self.requested}; the device has {self.device_free} free"


class Allocator:
    """The allocator of one device.

    `capacity_bytes` is what the driver can give this process: the device's total, less context and other processes.
    `total_bytes` (default: the capacity) is the device's total, of which a memory fraction is taken and which sizes the
    address range of an expandable segment. `emit(action, address, size, stream)` is called for every trace event, in
    PyTorch's order; for OOM, `address` is the driver's free bytes. With `segment_events_only` it is not called for
    alloc, free_requested, free_completed and oom.
    """

    def __init__(
        self,
        config: AllocatorConfig | None = None,
        capacity_bytes: int = MANY_BYTES,
        emit: Emit | None = None,
        *,
        segment_events_only: bool = False,
        total_bytes: int | None = None,
        driver: Driver | None = None,
    ) -> None:
        self.config = config or AllocatorConfig()
        total = capacity_bytes if total_bytes is None else total_bytes
        self._emit = None if segment_events_only else emit
        self.heap = Heap(self.config, driver or VirtualDriver(capacity_bytes), total, self._emit, emit)
        self.defer_streams = False
        self._statistics = self.heap.statistics
        self._max_split = self.heap.max_split
        self._any_fits = self._max_split == UNLIMITED and not self.config.expandable_segments
        self._plain_rounding = max(self.config.roundup_divisions) <= 1
        self._uses = CrossStreamUses()
        self._captures: dict[PoolId, Callable[[int], bool]] = {}  # private pool -> streams it serves, while recording
        self._users: dict[PoolId, int] = {}  # private pool -> graphs or MemPools that hold it
        self._allowed: int | None = None
        self._collects = False
        if self.config.memory_fraction is not None:
            self.set_memory_fraction(self.config.memory_fraction)

    # ---- what the program calls

    def malloc(self, size: int, stream: int = 0, pool_id: PoolId | None = None) -> int:
        """Address of a block for `size` > 0 bytes. Raises OutOfMemory after PyTorch's own retries.

        `pool_id` names a private pool outright; without it the captures underway decide.
        """
        if self._uses and not self.defer_streams and not self._captures:
            self.process_events()
        if size <= 0:
            raise ValueError(f"an allocation needs a positive size, not {size}")
        rounded = (size + 511) & -512 if self._plain_rounding else self.config.round_size(size)
        heap = self.heap
        if pool_id is None and not self._captures:
            pool = heap.small if rounded <= SMALL_SIZE else heap.large
        else:
            pool = self._pool_for(rounded, stream, pool_id)
        if self._collects:
            pool.searches += 1
        index = self._best_fit(pool, rounded, stream)
        if index is not None:
            block = heap.blocks[pool.free[stream].pop(index) & ADDRESS_MASK]
        else:
            block = self._obtain(pool, size, rounded, stream)
        if block.size - rounded >= pool.min_rest and rounded < pool.split_below:
            heap.split(block, rounded)
        elif block.expandable is None and (block.prev is not None or block.next is not None):
            self._statistics.notes += (SPLIT << 1 | pool.large, -block.size, -1)
        block.state = ALLOCATED
        block.requested = size
        if self._emit is not None:
            self._emit(ALLOC, block.address, size, stream)
        self._count_alloc(block, pool)
        return block.address

    def free(self, address: int) -> None:
        """Give back what `malloc` returned."""
        block = self.heap.blocks.get(address)
        if block is None or block.state != ALLOCATED:
            raise ValueError(f"{address:#x} is not the address of an allocated block")
        size, statistics = block.size, self._statistics
        statistics.allocated_bytes -= size
        statistics.notes += (GIVEN_BACK << 1 | block.pool.large, size, 0)
        if self._emit is not None:
            self._emit(FREE_REQUESTED, address, block.requested, block.stream)
        if size >= self._max_split:
            statistics.oversize_allocations.decrease(1)
        if not self._uses.hold(block, bool(self._captures)):
            self.heap.return_to_pool(block)

    def _count_alloc(self, block: Block, pool: Pool) -> None:
        statistics, size = self._statistics, block.size
        statistics.allocated_bytes += size
        statistics.notes += (HANDED_OUT << 1 | pool.large, size, block.requested)
        if size >= self._max_split:
            statistics.oversize_allocations.increase(1)
        if len(statistics.notes) > FOLD_AT:
            statistics.fold()

    def record_stream(self, address: int, stream: int) -> None:
        """Work on `stream` uses the block: after `free` it waits for that work. Its own stream is ignored."""
        block = self.heap.blocks.get(address)
        if block is None or block.state != ALLOCATED:
            raise ValueError(f"{address:#x} is not the address of an allocated block")
        if stream != block.stream:
            self._uses.record(block, stream)

    def process_events(self) -> None:
        """All work recorded so far on other streams has finished: the blocks that waited for it are free."""
        for block in self._uses.finish_all():
            self.heap.return_to_pool(block)

    def complete(self, address: int) -> None:
        """The other streams' work on this freed block has finished (for callers with `defer_streams`)."""
        block = self.heap.blocks.get(address)
        if block is None or block.state != PENDING:
            raise ValueError(f"{address:#x} is not the address of a block that waits for another stream")
        self._uses.finish(block)
        self.heap.return_to_pool(block)

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache(): give every segment without a live block back to the driver."""
        self._release_cached()

    def empty_pool(self, pool_id: PoolId) -> None:
        """The same for one private pool, if nothing uses it any more: the end of a MemPool."""
        if self._users.get(pool_id) == 0:
            for pool in self.heap.pools[pool_id]:
                release_free(self.heap, pool)

    def release_segment(self, address: int) -> bool:
        """Give one segment back to the driver; False where no segment begins that is one free block."""
        block = self.heap.blocks.get(address)
        if block is None or block.state != FREE or not is_whole_segment(block):
            return False
        self.heap.release_segment(block)
        return True

    def set_memory_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction: a limit on reserved bytes; 1.0 = none."""
        self._allowed = None if fraction == 1.0 else int(fraction * self.heap.total_bytes)
        self._collects = self._allowed is not None and self.config.garbage_collection_threshold > 0

    def restore(self, views: Iterable[SegmentView], ranges: Mapping[Owner, Iterable[tuple[int, int]]]) -> None:
        """Start from a recorded state (see `restore.restore`); only for an allocator that was not used yet."""
        if ranges:
            self._any_fits = False
        for block in restore(self.heap, views, ranges):
            self._uses.wait(block, {-1})

    # ---- private pools (CUDA graphs, MemPool)

    def begin_allocate_to_pool(self, pool_id: PoolId, serves: Callable[[int], bool] = lambda stream: True) -> None:
        """From now on requests of the streams that `serves` accepts use the private pool (a capture is underway)."""
        if pool_id in self._captures:
            raise ValueError(f"already recording to pool {pool_id}")
        self.hold_pool(pool_id)
        self._captures[pool_id] = serves

    def hold_pool(self, pool_id: PoolId) -> None:
        """One user more of the private pool: a graph, or a MemPool."""
        self._users[pool_id] = self._users.get(pool_id, 0) + 1
        self.heap.pool_pair(pool_id)

    def pool_users(self, pool_id: PoolId) -> int:
        return self._users.get(pool_id, 0)

    def end_allocate_to_pool(self, pool_id: PoolId) -> None:
        """The capture is over; the pool keeps its memory for the graph."""
        if self._captures.pop(pool_id, None) is None:
            raise ValueError(f"not recording to pool {pool_id}")

    def release_pool(self, pool_id: PoolId) -> None:
        """One user less. After the last one the pool's free segments go back with everything cached."""
        if self._users.get(pool_id, 0) <= 0:
            raise ValueError(f"nothing uses pool {pool_id}")
        self._users[pool_id] -= 1

    # ---- what the program asks

    @property
    def allocated_bytes(self) -> int:
        return self._statistics.allocated_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """torch.cuda.max_memory_allocated()."""
        self._statistics.fold()
        return self._statistics.all.allocated_bytes.peak

    @property
    def reserved_bytes(self) -> int:
        return self._statistics.reserved_bytes

    @property
    def private_pool_free_bytes(self) -> int:
        """Free bytes in private pools; the text of an OOM counts them as allocated."""
        private = [pool for pool_id, pair in self.heap.pools.items() if pool_id != DEFAULT_POOL for pool in pair]
        return sum(key >> ADDRESS_BITS for pool in private for keys in pool.free.values() for key in keys)

    @property
    def largest_free_block(self) -> int:
        """What CUDACachingAllocator::cacheInfo finds in all pools; bytes."""
        pools = (pool for pair in self.heap.pools.values() for pool in pair)
        return max((keys[-1] >> ADDRESS_BITS for pool in pools for keys in pool.free.values() if keys), default=0)

    def block_size(self, address: int) -> int:
        """Bytes of the block at `address`, an unsplit rest included."""
        return self.heap.blocks[address].size

    def is_pending(self, address: int) -> bool:
        """Whether a freed block still waits for another stream."""
        block = self.heap.blocks.get(address)
        return block is not None and block.state == PENDING

    def memory_stats(self) -> dict[str, int]:
        """The flat mapping of torch.cuda.memory_stats(), with its key names."""
        limit = -1 if self.config.max_split_size is None else self.config.max_split_size
        return dict(sorted({**self._statistics.as_dict(), "max_split_size": limit}.items()))

    def reset_peak(self) -> None:
        """torch.cuda.reset_peak_memory_stats()."""
        self._statistics.reset_peak()

    def reset_accumulated(self) -> None:
        """torch.cuda.reset_accumulated_memory_stats()."""
        self._statistics.reset_accumulated()

    def segments(self) -> Iterator[SegmentView]:
        """Every contiguous range of memory with its blocks, by address."""
        return self.heap.segments()

    # ---- finding a block

    def _pool_for(self, rounded: int, stream: int, pool_id: PoolId | None) -> Pool:
        if pool_id is not None:
            return self.heap.pool_pair(pool_id)[rounded > SMALL_SIZE]
        for pool_id, serves in self._captures.items():
            if serves(stream):
                return self.heap.pools[pool_id][rounded > SMALL_SIZE]
        return self.heap.small if rounded <= SMALL_SIZE else self.heap.large

    def first_given_back(self, size: int, stream: int = 0, pool_id: PoolId | None = None) -> int | None:
        """The oversize block that this request would give back first if the driver had no more memory."""
        rounded = self.config.round_size(size)
        chosen, _ = oversize_to_release(self.heap, self._pool_for(rounded, stream, pool_id), rounded, stream)
        return chosen[0].address if chosen else None

    def could_serve(self, size: int, stream: int = 0, pool_id: PoolId | None = None) -> bool:
        """Whether a cached block would serve this request, without new memory from the driver."""
        rounded = self.config.round_size(size)
        index = self._best_fit(self._pool_for(rounded, stream, pool_id), rounded, stream)
        return index is not None

    def _best_fit(self, pool: Pool, size: int, stream: int) -> int | None:
        """Index, in the stream's free list, of the block that serves `size` bytes."""
        keys = pool.free.get(stream)
        if not keys:
            return None
        index = bisect_left(keys, size << ADDRESS_BITS)
        if index == len(keys):
            return None
        if self._any_fits:
            return index
        blocks = self.heap.blocks
        block = blocks[keys[index] & ADDRESS_MASK]
        if block.expandable is not None:
            index = self._prefer_full_ranges(keys, index)
            if index == len(keys):
                return None
            block = blocks[keys[index] & ADDRESS_MASK]
        if block.size >= self._max_split and (
            size < self._max_split or block.size >= size + self.config.max_non_split_rounding
        ):
            return None
        return index

    def _prefer_full_ranges(self, keys: list[int], index: int) -> int:
        """The better fit when the best one can grow: a block is as large as it can become, not as it is."""
        blocks = self.heap.blocks
        block = blocks[keys[index] & ADDRESS_MASK]
        if not self.config.expandable_segments:
            while index < len(keys) and blocks[keys[index] & ADDRESS_MASK].expandable is not None:
                index += 1
            return index
        while block.expandable is not None and index + 1 < len(keys):
            following = blocks[keys[index + 1] & ADDRESS_MASK]
            if _grown_size(following) >= _grown_size(block):
                break
            block = following
            index += 1
        return index

    # ---- obtaining memory

    def _obtain(self, pool: Pool, size: int, rounded: int, stream: int) -> Block:
        """A block that no cached one could serve, with PyTorch's retries; raises OutOfMemory."""
        if self._collects and self._allowed is not None:
            threshold = int(self.config.garbage_collection_threshold * self._allowed)
            release_old_segments(self.heap, self.reserved_bytes - threshold)
        block = self._new_block(pool, rounded, stream)
        if block is None and release_oversize(self.heap, pool, rounded, stream):
            block = self._new_block(pool, rounded, stream)
        if block is None and not self._captures:
            self._release_cached()
            self._statistics.num_alloc_retries += 1
            block = self._new_block(pool, rounded, stream)
        if block is not None:
            return block
        device_free = self.heap.driver.free_bytes()
        if self._emit is not None:
            self._emit(Action.OOM, device_free, rounded, stream)
        self._statistics.num_ooms += 1
        tried = self.config.segment_size(rounded)
        raise OutOfMemory(size, rounded, tried, device_free, self.allocated_bytes, self.reserved_bytes, self._allowed)

    def _new_block(self, pool: Pool, rounded: int, stream: int) -> Block | None:
        tried = self.config.segment_size(rounded)
        if self._allowed is not None and self.reserved_bytes + tried > self._allowed:
            return None
        if self.config.expandable_segments:
            return expandable.allocate(self.heap, pool, rounded, stream)
        return self.heap.new_segment(pool, tried, stream)

    # ---- giving memory back

    def _release_cached(self) -> None:
        """Wait for all streams, then free every segment that is one free block and every free page.

        While a capture is underway only private pools that nothing holds any more are touched.
        """
        if not self._captures:
            self._statistics.num_sync_all_streams += 1
            self.process_events()
            release_free(self.heap, self.heap.large)
            release_free(self.heap, self.heap.small)
        for pool_id in self._users:
            self.empty_pool(pool_id)


def _grown_size(block: Block) -> int:
    """What the block can become when the unmapped range behind it gets memory."""
    return block.size + (block.next.size if block.next is not None and block.next.state == UNMAPPED else 0)
