"""PyTorch's CUDA caching allocator for one device, as a state machine that emits PyTorch's trace events.

Rules: c10/cuda/CUDACachingAllocator.cpp (v2.6.0 to 2.14). A request is rounded up and served from the smallest free
block of its own stream that is large enough, lowest address first; else by a new segment from the driver; else, in this
order, by collecting garbage, freeing one oversize block, freeing every cached segment. Freed blocks merge with free
neighbours of their segment. Sizes and counters are bytes. The machine has no clock: work on other streams
(`record_stream`) is taken as finished at the next `malloc`, unless `defer_streams` is set and the caller says when.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..snapshots.model import Action, BlockState
from .blocks import ADDRESS_BITS, ADDRESS_MASK, Block, Pool
from .config import MIN_BLOCK, SMALL_SIZE, AllocatorConfig
from .driver import Driver, VirtualDriver
from .statistics import Statistics

Emit = Callable[[Action, int, int, int], object]  # action, address, size, stream

ALLOC, FREE_REQUESTED, FREE_COMPLETED = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
SEGMENT_ALLOC, SEGMENT_FREE, OOM = Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.OOM
UNLIMITED = 1 << 63
DEFAULT_POOL = (0, 0)


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
    pool_id: tuple[int, int]
    blocks: tuple[BlockView, ...]


def _no_emit(action: Action, address: int, size: int, stream: int) -> None:
    return None


class Allocator:
    """The allocator of one device.

    `capacity_bytes` is what the driver can give this process: the device's total, less context and other processes.
    `total_bytes` (default: the capacity) is what a memory fraction is a fraction of. `emit(action, address, size,
    stream)` is called for every trace event, in PyTorch's order; for OOM, `address` is the driver's free bytes.
    """

    def __init__(
        self,
        config: AllocatorConfig | None = None,
        capacity_bytes: int = UNLIMITED,
        emit: Emit = _no_emit,
        *,
        total_bytes: int | None = None,
        driver: Driver | None = None,
    ) -> None:
        self.config = config or AllocatorConfig()
        self.driver: Driver = driver or VirtualDriver(capacity_bytes)
        self.defer_streams = False
        self.statistics = Statistics()
        self._total_bytes = capacity_bytes if total_bytes is None else total_bytes
        self._emit = emit
        self._max_split = self.config.max_split_size or UNLIMITED
        self._plain_rounding = max(self.config.roundup_divisions) <= 1
        self._small = Pool(DEFAULT_POOL, False, self.statistics.small_pool)
        self._large = Pool(DEFAULT_POOL, True, self.statistics.large_pool)
        self._blocks: dict[int, Block] = {}  # every block, by address
        self._heads: dict[int, Block] = {}  # first block of every segment, by address
        self._events: dict[int, deque[Block]] = {}  # stream -> blocks waiting for it, oldest first
        self._allowed: int | None = None
        if self.config.memory_fraction is not None:
            self.set_memory_fraction(self.config.memory_fraction)

    # ---- what the program calls

    def malloc(self, size: int, stream: int = 0) -> int:
        """Address of a block for `size` > 0 bytes. Raises OutOfMemory after PyTorch's own retries."""
        if self._events and not self.defer_streams:
            self.process_events()
        if size <= 0:
            raise ValueError(f"an allocation needs a positive size, not {size}")
        if self._plain_rounding:
            rounded = (size + 511) & -512
        else:
            rounded = self.config.round_size(size)
        pool = self._small if rounded <= SMALL_SIZE else self._large
        block = self._find(pool, rounded, stream)
        if block is None:
            block = self._obtain(pool, size, rounded, stream)
        if self._should_split(block, rounded):
            self._split(block, rounded)
        elif block.prev is not None or block.next is not None:
            self._split_changed(block, -1, -block.size)
        block.allocated = True
        block.requested = size
        address, got = block.address, block.size
        self._emit(ALLOC, address, size, stream)
        self.statistics.all.block_handed_out(got, size)
        pool.counters.block_handed_out(got, size)
        if got >= self._max_split:
            self.statistics.oversize_allocations.increase(1)
        return address

    def free(self, address: int) -> None:
        """Give back what `malloc` returned."""
        block = self._blocks.get(address)
        if block is None or not block.allocated:
            raise ValueError(f"{address:#x} is not the address of an allocated block")
        block.allocated = False
        size = block.size
        self.statistics.all.block_given_back(size)
        block.pool.counters.block_given_back(size)
        self._emit(FREE_REQUESTED, address, block.requested, block.stream)
        if size >= self._max_split:
            self.statistics.oversize_allocations.decrease(1)
        if block.stream_uses:
            self._wait_for_streams(block)
        else:
            self._return_to_pool(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Work on `stream` uses the block: after `free` it waits for that work. Its own stream is ignored."""
        block = self._blocks.get(address)
        if block is None or not block.allocated:
            raise ValueError(f"{address:#x} is not the address of an allocated block")
        if stream != block.stream:
            if block.stream_uses is None:
                block.stream_uses = set()
            block.stream_uses.add(stream)

    def process_events(self) -> None:
        """All work recorded so far on other streams has finished: the blocks that waited for it are free."""
        for stream in list(self._events):
            for block in self._events.pop(stream):
                block.pending_events -= 1
                if block.pending_events == 0:
                    self._return_to_pool(block)

    def complete(self, address: int) -> None:
        """The other streams' work on this freed block has finished (for callers with `defer_streams`)."""
        block = self._blocks.get(address)
        if block is None or block.pending_events == 0:
            raise ValueError(f"{address:#x} is not the address of a block that waits for another stream")
        for stream in list(self._events):
            waiting = self._events[stream]
            while block in waiting:
                waiting.remove(block)
                block.pending_events -= 1
            if not waiting:
                del self._events[stream]
        self._return_to_pool(block)

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache(): give every segment without a live block back to the driver."""
        self._release_cached()

    def set_memory_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction: a limit on reserved bytes; 1.0 = none."""
        self._allowed = None if fraction == 1.0 else int(fraction * self._total_bytes)

    # ---- what the program asks

    @property
    def allocated_bytes(self) -> int:
        return self.statistics.all.allocated_bytes.current

    @property
    def reserved_bytes(self) -> int:
        return self.statistics.all.reserved_bytes.current

    def block_size(self, address: int) -> int:
        """Bytes of the block at `address`, an unsplit rest included."""
        return self._blocks[address].size

    def memory_stats(self) -> dict[str, int]:
        """The flat mapping of torch.cuda.memory_stats(), with its key names."""
        limit = -1 if self.config.max_split_size is None else self.config.max_split_size
        return dict(sorted({**self.statistics.as_dict(), "max_split_size": limit}.items()))

    def stats(self) -> dict[str, int]:
        """The same as `memory_stats`."""
        return self.memory_stats()

    def reset_peak(self) -> None:
        """torch.cuda.reset_peak_memory_stats()."""
        self.statistics.reset_peak()

    def reset_accumulated(self) -> None:
        """torch.cuda.reset_accumulated_memory_stats()."""
        self.statistics.reset_accumulated()

    def segments(self) -> Iterator[SegmentView]:
        """Every segment with its blocks, by address."""
        for address in sorted(self._heads):
            block: Block | None = self._heads[address]
            assert block is not None
            pool, stream, expandable = block.pool, block.stream, block.expandable
            views = []
            while block is not None:
                views.append(_view(block))
                block = block.next
            total = sum(view.size for view in views)
            yield SegmentView(address, total, stream, pool.large, expandable, pool.pool_id, tuple(views))

    # ---- finding a block

    def _find(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Take the best fit out of the pool: the smallest block that is large enough, lowest address first."""
        pool.searches += 1
        keys = pool.free.get(stream)
        if not keys:
            return None
        index = bisect_left(keys, size << ADDRESS_BITS)
        if index == len(keys):
            return None
        found = keys[index] >> ADDRESS_BITS
        if found >= self._max_split and (size < self._max_split or found >= size + self.config.max_non_split_rounding):
            return None
        return self._blocks[keys.pop(index) & ADDRESS_MASK]

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.large:
            return rest > SMALL_SIZE and size < self._max_split
        return rest >= MIN_BLOCK

    def _split(self, block: Block, size: int) -> None:
        """Keep the low `size` bytes in `block`; the rest becomes a free block of its own."""
        rest = Block(block.address + size, block.size - size, block.stream, block.pool)
        was_split = block.prev is not None or block.next is not None
        block.size = size
        rest.prev = block
        rest.next = block.next
        if rest.next is not None:
            rest.next.prev = rest
        block.next = rest
        self._blocks[rest.address] = rest
        rest.pool.add(rest)
        if was_split:
            self._split_changed(block, 0, -size)
        else:
            self._split_changed(block, 1, rest.size)

    def _split_changed(self, block: Block, blocks: int, size: int) -> None:
        self.statistics.all.split_changed(blocks, size)
        block.pool.counters.split_changed(blocks, size)

    # ---- obtaining memory

    def _obtain(self, pool: Pool, size: int, rounded: int, stream: int) -> Block:
        """A block that no cached one could serve, with PyTorch's retries; raises OutOfMemory."""
        tried = self.config.segment_size(rounded)
        if self._allowed is not None and self.config.garbage_collection_threshold > 0:
            self._collect_garbage()
        block = self._new_segment(pool, tried, stream)
        if block is None and self._release_oversize(pool, tried, stream):
            block = self._new_segment(pool, tried, stream)
        if block is None:
            self._release_cached()
            self.statistics.num_alloc_retries += 1
            block = self._new_segment(pool, tried, stream)
        if block is not None:
            return block
        device_free = self.driver.free_bytes()
        self._emit(OOM, device_free, rounded, stream)
        self.statistics.num_ooms += 1
        raise OutOfMemory(size, rounded, tried, device_free, self.allocated_bytes, self.reserved_bytes, self._allowed)

    def _new_segment(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self._allowed is not None and self.reserved_bytes + size > self._allowed:
            return None
        address = self.driver.malloc(size)
        if address is None:
            return None
        block = Block(address, size, stream, pool)
        self._blocks[address] = self._heads[address] = block
        self._segment_counted(pool, size)
        self._emit(SEGMENT_ALLOC, address, size, stream)
        return block

    def _segment_counted(self, pool: Pool, size: int) -> None:
        self.statistics.num_device_alloc += 1
        for counters in (self.statistics.all, pool.counters):
            counters.segment.increase(1)
            counters.reserved_bytes.increase(size)
        if size >= self._max_split:
            self.statistics.oversize_segments.increase(1)

    # ---- giving memory back

    def _wait_for_streams(self, block: Block) -> None:
        assert block.stream_uses is not None
        for stream in sorted(block.stream_uses):
            block.pending_events += 1
            self._events.setdefault(stream, deque()).append(block)
        block.stream_uses = None

    def _return_to_pool(self, block: Block) -> None:
        """Nothing uses the block any more: merge it with free neighbours and make it available."""
        pool, size = block.pool, block.size
        self._emit(FREE_COMPLETED, block.address, block.requested, block.stream)
        self.statistics.all.block_inactive(size, block.requested)
        pool.counters.block_inactive(size, block.requested)
        absorbed, merged_bytes = 0, 0
        prev, after = block.prev, block.next
        if prev is not None and _is_free(prev):
            pool.remove(prev)
            absorbed += 1
            merged_bytes += prev.size
            self._absorb(prev, block)
            block = prev
        if after is not None and _is_free(after):
            pool.remove(after)
            absorbed += 1
            merged_bytes += after.size
            self._absorb(block, after)
        pool.add(block)
        if block.prev is not None or block.next is not None:
            self._split_changed(block, 1 - absorbed, block.size - merged_bytes)
        elif absorbed:
            self._split_changed(block, -absorbed, -merged_bytes)

    def _absorb(self, block: Block, after: Block) -> None:
        """`after`, the right neighbour, becomes part of `block`."""
        del self._blocks[after.address]
        block.size += after.size
        block.next = after.next
        if after.next is not None:
            after.next.prev = block

    def _collect_garbage(self) -> None:
        """Free cached large segments of at least average age while reserved exceeds the threshold of the limit."""
        assert self._allowed is not None
        surplus = self.reserved_bytes - int(self.config.garbage_collection_threshold * self._allowed)
        pool = self._large
        while surplus > 0:
            cached = [b for b in map(self._blocks.__getitem__, pool.addresses()) if not b.is_split]
            ages = [pool.searches - b.pooled_at for b in cached]
            if not cached:
                return
            average = sum(ages) / len(ages)
            for block, age in zip(cached, ages, strict=True):
                if surplus > 0 and age >= average:
                    surplus -= block.size
                    self._release_segment(block)

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """With max_split_size: free the one oversize block that makes room, else oversize ones, largest first."""
        if self.config.max_split_size is None:
            return False
        wanted = max(size, self._max_split)
        keys = pool.free.get(stream, [])
        index = bisect_left(keys, wanted << ADDRESS_BITS)
        if index < len(keys):
            self._release_segment(self._blocks[keys[index] & ADDRESS_MASK])
            return True
        released = 0
        while keys and released < wanted and keys[-1] >> ADDRESS_BITS >= self._max_split:
            block = self._blocks[keys[-1] & ADDRESS_MASK]
            released += block.size
            self._release_segment(block)
        return released >= wanted

    def _release_cached(self) -> None:
        """Wait for all streams, then free every segment that is one free block."""
        self.statistics.num_sync_all_streams += 1
        self.process_events()
        for pool in (self._large, self._small):
            for address in pool.addresses():
                block = self._blocks[address]
                if not block.is_split:
                    self._release_segment(block)

    def _release_segment(self, block: Block) -> None:
        pool, size = block.pool, block.size
        self._emit(SEGMENT_FREE, block.address, size, block.stream)
        self.driver.free(block.address, size)
        pool.remove(block)
        del self._blocks[block.address], self._heads[block.address]
        self.statistics.num_device_free += 1
        for counters in (self.statistics.all, pool.counters):
            counters.segment.decrease(1)
            counters.reserved_bytes.decrease(size)
        if size >= self._max_split:
            self.statistics.oversize_segments.decrease(1)


def _is_free(block: Block) -> bool:
    return not block.allocated and block.pending_events == 0 and block.mapped


def _view(block: Block) -> BlockView:
    if block.allocated:
        return BlockView(block.address, block.size, block.requested, BlockState.ACTIVE_ALLOCATED)
    if block.pending_events:
        return BlockView(block.address, block.size, block.requested, BlockState.ACTIVE_PENDING_FREE)
    return BlockView(block.address, block.size, 0, BlockState.INACTIVE)
