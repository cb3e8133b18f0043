"""The virtual GPU as a device: one caching allocator per index, one log of events, the target's data sheet.

A request that the allocator cannot serve after its own retries raises `torch.OutOfMemoryError` in PyTorch's wording.
Sizes are bytes.
"""

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ...allocator.config import AllocatorConfig
from ...allocator.driver import GRANULE, VirtualDriver
from ...allocator.machine import Allocator, OutOfMemory
from ...diagnosers.interface import CATEGORIES, Category
from ...snapshots.model import Action
from .band import Band
from .private import raw_storage
from .stacks import StackTable
from .storages import RECORDS, Kind, StorageRecord, tag_storage
from .streams import CurrentStreams, current_device_index

TEMPORARY = CATEGORIES.index(Category.TEMPORARY.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTarget:
    """What the virtual GPU pretends to be; from configs/gpus.yaml."""

    name: str
    total_bytes: int  # what cudaMemGetInfo calls total
    context_bytes: int  # CUDA context and loaded kernels: outside the allocator
    sm_count: int
    threads_per_sm: int
    compute_capability: tuple[int, int]
    title: str = ""  # what the driver calls it; empty = the name
    torch_version: tuple[int, int] | None = None  # None = the installed one
    flops: float = 0.0  # FLOP/s in float, without tensor cores; 0 = not known
    memory_bandwidth: float = 1.0  # bytes/s

    @property
    def capacity_bytes(self) -> int:
        """What the allocator can get from the driver, which gives memory by whole granules of 2 MiB."""
        return max(0, self.total_bytes - self.context_bytes) // GRANULE * GRANULE

    @property
    def outside_bytes(self) -> int:
        """What the allocator cannot get: the context, and the piece of a granule beside it."""
        return self.total_bytes - self.capacity_bytes


class EventLog:
    """Growing columns of one device, one row per trace event; about 60 bytes a row."""

    __slots__ = (
        "action",
        "address",
        "category",
        "estimated",
        "free_bytes_at_oom",
        "module",
        "size",
        "stack",
        "stream",
        "time_us",
    )

    def __init__(self) -> None:
        self.action = array("B")
        self.address = array("Q")
        self.size = array("q")
        self.stream = array("Q")
        self.time_us = array("q")
        self.stack = array("i")
        self.module = array("i")
        self.category = array("b")
        self.estimated = array("b")
        self.free_bytes_at_oom: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.action)


class Context:
    """What the next events belong to; set by the tracker and the hooks, read by every event of any device."""

    __slots__ = ("category", "estimated", "module", "phase_category", "stack", "try_only")

    def __init__(self) -> None:
        self.stack = -1  # id in the StackTable
        self.module = -1  # id in the hooks' module table
        self.phase_category = -1  # what the phase allocates, an index into interface.CATEGORIES; -1 = not known
        self.category = -1  # what this operation allocates, where that differs; -1 = as the phase
        self.estimated = False
        self.try_only = False  # a request that finds no memory is not logged: something smaller is asked for next


class VirtualDevice:
    """All the GPUs that one process sees."""

    def __init__(self, target: GpuTarget, count: int = 1, config: AllocatorConfig | None = None) -> None:
        self.target = target
        self.count = count
        self.streams = CurrentStreams()  # of the calling thread, per device: the pointer that a trace shows
        self.stacks = StackTable()
        self.context = Context()
        self.logs = [EventLog() for _ in range(count)]
        self.phase_began = [0] * count  # event of each device at which the running phase began
        self.allocations = 0  # storages and scratch ever allocated
        self.lock = threading.Lock()
        self._late: deque[tuple[int, int]] = deque()  # frees that arrived while an allocator was at work
        self.taken_outside = [0] * count  # by libraries that the allocator does not know, such as NCCL
        self.settings: Callable[[], AllocatorConfig | None] | None = None  # asked for at the first allocation
        self.bands = [Band() for _ in range(count)]
        self.allocators = self._made(config or AllocatorConfig())

    def _made(self, config: AllocatorConfig) -> list[Allocator]:
        capacity, total = self.target.capacity_bytes, self.target.total_bytes
        self.drivers = [VirtualDriver(capacity - taken) for taken in self.taken_outside]
        return [
            Allocator(config, capacity, self._emitter(index), total_bytes=total, driver=driver)
            for index, driver in enumerate(self.drivers)
        ]

    def take_outside(self, nbytes: int, index: int = 0) -> None:
        """A library takes memory of the card for itself, as far as there is any, for good."""
        driver = self.drivers[index]
        taken = max(0, min(nbytes, driver.free_bytes()))
        driver.capacity_bytes -= taken
        self.taken_outside[index] += taken

    def outside_bytes(self, index: int = 0) -> int:
        """What is on the card beside the allocator's own: the context, and what libraries took."""
        return self.target.outside_bytes + self.taken_outside[index]

    def _begin(self) -> None:
        """PyTorch reads its settings when CUDA starts: a script may have set them before."""
        ask, self.settings = self.settings, None
        config = ask() if ask is not None else None
        if config is not None:
            self.allocators[:] = self._made(config)

    @property
    def current(self) -> int:
        """What torch.cuda.current_device() says on the calling thread."""
        return current_device_index()

    def _emitter(self, index: int) -> Callable[[Action, int, int, int], None]:
        log, context = self.logs[index], self.context

        def emit(action: Action, address: int, size: int, stream: int) -> None:
            if action == Action.OOM:
                if context.try_only:
                    return
                log.free_bytes_at_oom[len(log.action)] = address
                address = 0
            log.action.append(action)
            log.address.append(address)
            log.size.append(size)
            log.stream.append(stream)
            log.time_us.append(time.time_ns() // 1000)
            log.stack.append(context.stack)
            log.module.append(context.module)
            log.category.append(context.category if context.category >= 0 else context.phase_category)
            log.estimated.append(context.estimated)

        return emit

    def malloc(
        self, nbytes: int, index: int = 0, stream: int | None = None, span: tuple[int, int] | None = None
    ) -> int:
        """An address on device `index`; raises torch.OutOfMemoryError.

        `span`: how many bytes less and more an estimate can be.
        """
        error: torch.OutOfMemoryError | None = None
        address = 0
        if self.settings is not None:
            self._begin()
        with self.lock:
            allocator = self.allocators[index]
            try:
                address = allocator.malloc(nbytes, self.streams[index] if stream is None else stream)
            except OutOfMemory as full:
                message = oom_message(full, index, self.target, allocator.private_pool_free_bytes)
                error = torch.OutOfMemoryError(message)
        if self._late:
            self._free_late()
        if error is not None:
            try:
                raise error  # outside the handler: no exception of ours in the script's traceback
            finally:
                del error  # else this frame and the exception keep each other, and what a kernel holds that goes on
        self.allocations += 1
        if span is not None:
            self.bands[index].came(address, *span)
        self.bands[index].at(allocator.allocated_bytes)
        return address

    def free(self, address: int, index: int = 0) -> None:
        """Give an address back. Python's collector may call this (through a dying storage) in the middle of malloc."""
        self._late.append((address, index))
        self._free_late()

    def _free_late(self) -> None:
        while self._late and self.lock.acquire(blocking=False):
            try:
                if self._late:
                    address, index = self._late.popleft()
                    self.allocators[index].free(address)
                    self.bands[index].gone(address)
            finally:
                self.lock.release()

    def adopt(self, storage: torch.UntypedStorage, index: int = 0) -> StorageRecord:
        """Allocate a new virtual storage and start its record; zero bytes reach no allocator."""
        record = tag_storage(storage, Kind.CUDA, index)
        if record.nbytes:
            try:
                self.fill(record)
            except torch.OutOfMemoryError:
                del RECORDS[record.key]
                raise
        return record

    def fill(self, record: StorageRecord) -> None:
        """Give `record` an address for its `nbytes`."""
        record.address = self.malloc(record.nbytes, record.index)
        record.event = len(self.logs[record.index].action) - 1
        record.born = self.allocations

    def release(self, record: StorageRecord) -> None:
        """The storage died: its address goes back."""
        address, record.address = record.address, 0
        context = self.context
        kept = context.stack
        log = self.logs[record.index]
        if record.event >= self.phase_began[record.index] and log.category[record.event] < 0:
            log.category[record.event] = TEMPORARY  # it served one phase only
        context.stack = self.stacks.capture(2)
        self.free(address, record.index)
        context.stack = kept

    def largest_free(self, index: int = 0) -> int:
        """CUDACachingAllocator::cacheInfo: the largest free block, or what the driver has left."""
        with self.lock:
            allocator = self.allocators[index]
            return max(allocator.heap.driver.free_bytes(), allocator.largest_free_block)

    def empty_cache(self, index: int = 0) -> None:
        """Every free segment goes back to the driver, by an operation of PyTorch's own."""
        with self.lock:
            self.allocators[index].empty_cache()
        self._free_late()

    def scratch(
        self, nbytes: int, index: int = 0, *, estimated: bool = False, between: tuple[int, int] | None = None
    ) -> int:
        """Allocate what a kernel needs beside its outputs; the caller frees it.

        `between`: the least and the most that an estimate can be.
        """
        self.context.estimated = estimated
        span = None if between is None else (nbytes - between[0], between[1] - nbytes)
        try:
            return self.malloc(nbytes, index, span=span)
        finally:
            self.context.estimated = False

    @contextmanager
    def unlogged_failure(self) -> Iterator[None]:
        """A request in here that finds no memory raises, and leaves no trace: a library asks for less next."""
        self.context.try_only = True
        try:
            yield
        finally:
            self.context.try_only = False

    def might_take(self, nbytes: int, index: int = 0) -> None:
        """A kernel that allocated nothing may take so much while it runs."""
        self.bands[index].might(self.allocators[index].allocated_bytes, nbytes)

    def brief_peak(self, nbytes: int, index: int = 0) -> None:
        """For a moment a library may hold this much, of what is free or cached; it makes do with less."""
        allocator = self.allocators[index]
        reserved = allocator.reserved_bytes
        more = 0 if nbytes <= allocator.largest_free_block else nbytes
        self.bands[index].brief = max(self.bands[index].brief, reserved + more)

    def mark_estimated(self, tensor: torch.Tensor, between: tuple[int, int]) -> None:
        """The size of this newest tensor is an estimate: the report counts its bytes as such, within these bounds."""
        record = RECORDS.get(raw_storage(tensor)._cdata)
        if record is not None and record.event >= 0 and record.address:
            self.logs[record.index].estimated[record.event] = 1
            low, high = between
            self.bands[record.index].was(record.address, record.nbytes - low, high - record.nbytes)

    def resized(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """The storage changed its size: a new block first, then the old one goes, as the resize kernel does."""
        record = RECORDS.get(storage._cdata)
        if record is None or record.kind is not Kind.CUDA or record.nbytes == nbytes:
            return
        old = record.address
        record.nbytes = nbytes
        record.address = 0
        if nbytes:
            self.fill(record)
        if old:
            self.free(old, record.index)


def oom_message(full: OutOfMemory, index: int, target: GpuTarget, in_private_pools: int = 0) -> str:
    """PyTorch's own text (2.5 and newer, CUDACachingAllocator.cpp), with the numbers of the virtual GPU.

    `in_private_pools`: free bytes of private pools, which PyTorch counts as allocated here.
    """
    used = target.total_bytes - full.device_free
    allowed = "" if full.allowed is None else f"{format_size(full.allowed)} allowed; "
    private = f"with {format_size(in_private_pools)} allocated in private pools (e.g., CUDA Graphs), "
    pools = private if in_private_pools else ""
    allocated = full.allocated + in_private_pools
    return (
        f"CUDA out of memory. Tried to allocate {format_size(full.tried)}. GPU {index} has a total capacity of "
        f"{format_size(target.total_bytes)} of which {format_size(full.device_free)} is free. "
        f"Including non-PyTorch memory, this process has {format_size(used)} memory in use. {allowed}"
        f"Of the allocated memory {format_size(allocated)} is allocated by PyTorch, {pools}and "
        f"{format_size(full.reserved - allocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        "avoid fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def format_size(nbytes: int) -> str:
    """c10's format_size: `bytes` as an integer, above that two decimals."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    for unit, scale in (("KiB", 1024), ("MiB", 1024**2)):
        if nbytes <= 1024 * scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes / 1024**3:.2f} GiB"
