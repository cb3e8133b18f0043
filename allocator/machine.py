"""PyTorch's CUDA caching allocator for one device, as a state machine that emits PyTorch's trace events.

Rules: c10/cuda/CUDACachingAllocator.cpp (v2.6.0 to 2.14). A request is rounded up and served from the smallest free
block of its own stream that is large enough, lowest address first; else with new memory from the driver; else, in this
order, after collecting garbage, freeing oversize blocks, freeing everything cached. Freed blocks merge with free
neighbours of their segment. Sizes and counters are bytes. The machine has no clock: work on other streams
(`record_stream`) is taken as finished at the next `malloc`, unless `defer_streams` is set and the caller says when.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..snapshots.model import Action
from . import expandable
from .blocks import ADDRESS_BITS, ADDRESS_MASK, DEFAULT_POOL, Block, Pool, PoolId
from .config import MIN_BLOCK, SMALL_SIZE, AllocatorConfig
from .driver import Driver, VirtualDriver
from .heap import UNLIMITED, BlockView, Emit, Heap, SegmentView
from .restore import Owner, restore

__all__ = ["Allocator", "BlockView", "OutOfMemory", "SegmentView"]

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


def _no_emit(action: Action, address: int, size: int, stream: int) -> None:
    return None


class Allocator:
    """The allocator of one device.

    `capacity_bytes` is what the driver can give this process: the device's total, less context and other processes.
    `total_bytes` (default: the capacity) is the device's total, of which a memory fraction is taken and which sizes the
    address range of an expandable segment. `emit(action, address, size, stream)` is called for every trace event, in
    PyTorch's order; for OOM, `address` is the driver's free bytes.
    """

    def __init__(
        self,
        config: AllocatorConfig | None = None,
        capacity_bytes: int = MANY_BYTES,
        emit: Emit = _no_emit,
        *,
        total_bytes: int | None = None,
        driver: Driver | None = None,
    ) -> None:
        self.config = config or AllocatorConfig()
        total = capacity_bytes if total_bytes is None else total_bytes
        self.heap = Heap(self.config, driver or VirtualDriver(capacity_bytes), total, emit)
        self.defer_streams = False
        self._emit = emit
        self._statistics = self.heap.statistics
        self._max_split = self.heap.max_split
        self._plain_rounding = max(self.config.roundup_divisions) <= 1
        self._events: dict[int, deque[Block]] = {}  # stream -> blocks waiting for it, oldest first
        self._captures: dict[PoolId, Callable[[int], bool]] = {}  # private pool -> streams it serves, while recording
        self._deferred: list[Block] = []  # freed during a capture while another stream used them
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
        if (self._events or self._deferred) and not self.defer_streams and not self._captures:
            self.process_events()
        if size <= 0:
            raise ValueError(f"an allocation needs a positive size, not {size}")
        rounded = (size + 511) & -512 if self._plain_rounding else self.config.round_size(size)
        pool = self._pool_for(rounded, stream, pool_id)
        block = self._find(pool, rounded, stream)
        if block is None:
            block = self._obtain(pool, size, rounded, stream)
        if self._should_split(block, rounded):
            self.heap.split(block, rounded)
        elif block.expandable is None and (block.prev is not None or block.next is not None):
            self.heap.count_split(pool, -1, -block.size)
        block.allocated = True
        block.requested = size
        address, got = block.address, block.size
        self._emit(Action.ALLOC, address, size, stream)
        self._statistics.all.block_handed_out(got, size)
        pool.counters.block_handed_out(got, size)
        if got >= self._max_split:
            self._statistics.oversize_allocations.increase(1)
        return address

    def free(self, address: int) -> None:
        """Give back what `malloc` returned."""
        block = self._allocated(address)
        block.allocated = False
        size = block.size
        self._statistics.all.block_given_back(size)
        block.pool.counters.block_given_back(size)
        self._emit(Action.FREE_REQUESTED, address, block.requested, block.stream)
        if size >= self._max_split:
            self._statistics.oversize_allocations.decrease(1)
        if block.stream_uses:
            self._wait_for_streams(block)
        else:
            self.heap.return_to_pool(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Work on `stream` uses the block: after `free` it waits for that work. Its own stream is ignored."""
        block = self._allocated(address)
        if stream != block.stream:
            if block.stream_uses is None:
                block.stream_uses = set()
            block.stream_uses.add(stream)

    def process_events(self) -> None:
        """All work recorded so far on other streams has finished: the blocks that waited for it are free."""
        for block in self._deferred:
            block.pending_events -= 1
            self._wait_for_streams(block)
        self._deferred = []
        for stream in list(self._events):
            for block in self._events.pop(stream):
                block.pending_events -= 1
                if block.pending_events == 0:
                    self.heap.return_to_pool(block)

    def complete(self, address: int) -> None:
        """The other streams' work on this freed block has finished (for callers with `defer_streams`)."""
        block = self.heap.blocks.get(address)
        if block is None or block.pending_events == 0:
            raise ValueError(f"{address:#x} is not the address of a block that waits for another stream")
        for stream in list(self._events):
            waiting = self._events[stream]
            while block in waiting:
                waiting.remove(block)
                block.pending_events -= 1
            if not waiting:
                del self._events[stream]
        if block.pending_events == 0:
            self.heap.return_to_pool(block)

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache(): give every segment without a live block back to the driver."""
        self._release_cached()

    def set_memory_fraction(self, fraction: float) -> None:
        """torch.cuda.set_per_process_memory_fraction: a limit on reserved bytes; 1.0 = none."""
        self._allowed = None if fraction == 1.0 else int(fraction * self.heap.total_bytes)
        self._collects = self._allowed is not None and self.config.garbage_collection_threshold > 0

    def restore(self, views: Iterable[SegmentView], ranges: Mapping[Owner, Iterable[tuple[int, int]]]) -> None:
        """Start from a recorded state (see `restore.restore`); only for an allocator that was not used yet."""
        for block in restore(self.heap, views, ranges):
            block.pending_events = 1
            self._events.setdefault(-1, deque()).append(block)

    # ---- private pools (CUDA graphs, MemPool)

    def begin_allocate_to_pool(self, pool_id: PoolId, serves: Callable[[int], bool] = lambda stream: True) -> None:
        """From now on requests of the streams that `serves` accepts use the private pool (a capture is underway)."""
        if pool_id in self._captures:
            raise ValueError(f"already recording to pool {pool_id}")
        if pool_id not in self._users:
            self._users[pool_id] = 0
        self._users[pool_id] += 1
        self.heap.pool_pair(pool_id)
        self._captures[pool_id] = serves

    def end_allocate_to_pool(self, pool_id: PoolId) -> None:
        """The capture is over; the pool keeps its memory for the graph."""
        if self._captures.pop(pool_id, None) is None:
            raise ValueError(f"not recording to pool {pool_id}")

    def release_pool(self, pool_id: PoolId) -> None:
        """One graph less uses the pool. After the last one its free segments go back with everything cached."""
        if self._users.get(pool_id, 0) <= 0:
            raise ValueError(f"nothing uses pool {pool_id}")
        self._users[pool_id] -= 1

    # ---- what the program asks

    @property
    def allocated_bytes(self) -> int:
        return self._statistics.all.allocated_bytes.current

    @property
    def reserved_bytes(self) -> int:
        return self._statistics.all.reserved_bytes.current

    @property
    def private_pool_free_bytes(self) -> int:
        """Free bytes in private pools; the text of an OOM counts them as allocated."""
        private = [pool for pool_id, pair in self.heap.pools.items() if pool_id != DEFAULT_POOL for pool in pair]
        return sum(key >> ADDRESS_BITS for pool in private for keys in pool.free.values() for key in keys)

    def block_size(self, address: int) -> int:
        """Bytes of the block at `address`, an unsplit rest included."""
        return self.heap.blocks[address].size

    def is_pending(self, address: int) -> bool:
        """Whether a freed block still waits for another stream."""
        block = self.heap.blocks.get(address)
        return block is not None and block.pending_events > 0

    def memory_stats(self) -> dict[str, int]:
        """The flat mapping of torch.cuda.memory_stats(), with its key names."""
        limit = -1 if self.config.max_split_size is None else self.config.max_split_size
        return dict(sorted({**self._statistics.as_dict(), "max_split_size": limit}.items()))

    def stats(self) -> dict[str, int]:
        """The same as `memory_stats`."""
        return self.memory_stats()

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

    def _allocated(self, address: int) -> Block:
        block = self.heap.blocks.get(address)
        if block is None or not block.allocated:
            raise ValueError(f"{address:#x} is not the address of an allocated block")
        return block

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
        chosen, _ = self._oversize_to_release(self._pool_for(rounded, stream, pool_id), rounded, stream)
        return chosen[0].address if chosen else None

    def could_serve(self, size: int, stream: int = 0, pool_id: PoolId | None = None) -> bool:
        """Whether a cached block would serve this request, without new memory from the driver."""
        rounded = self.config.round_size(size)
        index = self._best_fit(self._pool_for(rounded, stream, pool_id), rounded, stream)
        return index is not None

    def _find(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Take the best fit out of the pool: the smallest block that is large enough, lowest address first."""
        if self._collects:
            pool.searches += 1
        index = self._best_fit(pool, size, stream)
        return None if index is None else self.heap.blocks[pool.free[stream].pop(index) & ADDRESS_MASK]

    def _best_fit(self, pool: Pool, size: int, stream: int) -> int | None:
        """Index, in the stream's free list, of the block that serves `size` bytes."""
        keys = pool.free.get(stream)
        if not keys:
            return None
        blocks = self.heap.blocks
        index = bisect_left(keys, size << ADDRESS_BITS)
        if index == len(keys):
            return None
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

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.large and not self.config.expandable_segments:
            return rest > SMALL_SIZE and size < self._max_split
        return rest >= MIN_BLOCK

    # ---- obtaining memory

    def _obtain(self, pool: Pool, size: int, rounded: int, stream: int) -> Block:
        """A block that no cached one could serve, with PyTorch's retries; raises OutOfMemory."""
        if self._collects:
            self._collect_garbage()
        block = self._new_block(pool, rounded, stream)
        if block is None and self._release_oversize(pool, rounded, stream):
            block = self._new_block(pool, rounded, stream)
        if block is None and not self._captures:
            self._release_cached()
            self._statistics.num_alloc_retries += 1
            block = self._new_block(pool, rounded, stream)
        if block is not None:
            return block
        device_free = self.heap.driver.free_bytes()
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

    def _wait_for_streams(self, block: Block) -> None:
        assert block.stream_uses is not None
        if self._captures:
            block.pending_events += 1
            self._deferred.append(block)
            return
        for stream in sorted(block.stream_uses):
            block.pending_events += 1
            self._events.setdefault(stream, deque()).append(block)
        block.stream_uses = None

    def _collect_garbage(self) -> None:
        """Free cached large segments of at least average age while reserved exceeds the threshold of the limit."""
        assert self._allowed is not None
        pool = self.heap.large
        surplus = self.reserved_bytes - int(self.config.garbage_collection_threshold * self._allowed)
        cached = [block for block in map(self.heap.blocks.__getitem__, pool.addresses()) if _is_whole_segment(block)]
        while surplus > 0 and cached:
            average = sum(pool.searches - block.pooled_at for block in cached) / len(cached)
            old = [block for block in cached if pool.searches - block.pooled_at >= average]
            cached = [block for block in cached if pool.searches - block.pooled_at < average]
            for block in old:
                surplus -= block.size
                self.heap.release_segment(block)

    def _oversize_to_release(self, pool: Pool, size: int, stream: int) -> tuple[list[Block], bool]:
        """With max_split_size: the one oversize block that makes room, else oversize ones, largest first.

        Also whether they suffice; PyTorch frees them either way.
        """
        if self._max_split == UNLIMITED:
            return [], False
        wanted = max(size, self._max_split)
        oversize = [
            block
            for key in pool.free.get(stream, ())
            if key >> ADDRESS_BITS >= self._max_split
            and _is_whole_segment(block := self.heap.blocks[key & ADDRESS_MASK])
        ]
        for block in oversize:
            if block.size >= wanted:
                return [block], True
        chosen: list[Block] = []
        while oversize and sum(block.size for block in chosen) < wanted:
            chosen.append(oversize.pop())
        return chosen, sum(block.size for block in chosen) >= wanted

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        chosen, suffices = self._oversize_to_release(pool, size, stream)
        for block in chosen:
            self.heap.release_segment(block)
        return suffices

    def _release_cached(self) -> None:
        """Wait for all streams, then free every segment that is one free block and every free page."""
        if not self._captures:
            self._statistics.num_sync_all_streams += 1
            self.process_events()
        self._release_pool_blocks(self.heap.large)
        self._release_pool_blocks(self.heap.small)
        for pool_id, users in self._users.items():
            if users == 0:
                for pool in self.heap.pools[pool_id]:
                    self._release_pool_blocks(pool)

    def _release_pool_blocks(self, pool: Pool) -> None:
        growing = []
        for block in [self.heap.blocks[address] for address in pool.addresses()]:
            if block.expandable is not None:
                growing.append(block)
            elif not block.is_split:
                self.heap.release_segment(block)
        for block in growing:
            expandable.unmap(self.heap, block)


def _grown_size(block: Block) -> int:
    """What the block can become when the unmapped range behind it gets memory."""
    return block.size + (block.next.size if block.next is not None and not block.next.mapped else 0)


def _is_whole_segment(block: Block) -> bool:
    return block.expandable is None and not block.is_split
