"""`torch.cuda` and `torch.accelerator` of the virtual GPU.

Almost everything in `torch.cuda` is Python over `torch._C._cuda_*`, functions that a CPU build does not have. They are
supplied here, so that torch's own Python (memory_stats' flat keys, memory_summary, rng, device contexts) runs as it
does on a GPU, and names that other modules imported keep working. Only what a CPU build decides in Python itself is
replaced: `_lazy_init`, `is_available`, `device_count`, ...

`_cuda_getDeviceCount` is left out on purpose: `torch.cuda._is_compiled()` asks for it, and torch._dynamo would then
import names that a CPU build does not have.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from .gpus import SimulatedGpus
from .patching import Patches, patches
from .private import C, device_index
from .streams import Stream, exchange_device, selected, set_stream

if TYPE_CHECKING:
    from .session import Session

# what a CPU build of torch does not say of itself: the CUDA of the default wheels of torch 2.13, and for GPUs older
# than sm_75, which that CUDA dropped, the oldest one still built (torch.cuda.PYTORCH_RELEASES_CODE_CC)
CUDA_VERSION = "13.0"
CUDA_VERSION_BEFORE_SM75 = "12.6"
ARCH_LIST = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
ARCH_LIST_BEFORE_SM75 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CUDNN_VERSION = 91300
NCCL_VERSION = (2, 28, 9)


class _Initialised:
    """C++ calls `torch.cuda._lazy_init` once per process and remembers; a later session then starts initialised."""

    by_cpp = False


def visible_count(count: int) -> int:
    """Devices left of `count` by CUDA_VISIBLE_DEVICES: unset = all, else as many as it lists before an invalid one."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return count
    visible = 0
    for entry in listed.split(","):
        text = entry.strip()
        if not (text.startswith(("GPU-", "MIG-")) or text.isdigit()):
            break
        visible += 1
    return visible


def _lazy_init() -> None:
    """CUDA "starts": run what was queued before (seeds), as torch.cuda._lazy_init does."""
    cuda: Any = torch.cuda
    _Initialised.by_cpp = True
    if cuda.is_initialized() or hasattr(cuda._tls, "is_initializing"):
        return
    with cuda._initialization_lock:
        if cuda.is_initialized():
            return
        if not cuda.is_available():
            raise RuntimeError("No CUDA GPUs are available (CUDA_VISIBLE_DEVICES hides the virtual GPU)")
        cuda._tls.is_initializing = True
        try:
            seeds = [call for call in cuda._lazy_seed_tracker.get_calls() if call]
            for call, _ in [*cuda._queued_calls, *seeds]:
                call()
        finally:
            del cuda._tls.is_initializing
        cuda._initialized = True


class Cudart:
    """`torch.cuda.cudart()`: the few entries that scripts and torch itself use."""

    cudaError = SimpleNamespace(success=0)  # noqa: N815

    def __init__(self, gpus: SimulatedGpus) -> None:
        self._gpus = gpus

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802
        return self._gpus.mem_get_info(device)

    def cudaGetErrorString(self, error: object) -> str:  # noqa: N802
        return f"CUDA error {error}"

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name in ("cudaProfilerStart", "cudaProfilerStop", "cudaHostRegister", "cudaHostUnregister"):
            return lambda *_: 0
        raise AttributeError(
            f"oomdoc: the virtual GPU has no cudart().{name}; it answers cudaMemGetInfo, cudaProfilerStart/Stop and "
            "cudaHostRegister/Unregister"
        )


class CompiledKernel:
    """Of torch.cuda._compile_kernel: it writes to tensors that the script gives it, and allocates nothing."""

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Nothing runs, and needs none."""

    def __call__(
        self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Any = None, shared_mem: int = 0, stream: Any = None
    ) -> None:
        tensors = [argument for argument in args or () if isinstance(argument, torch.Tensor)]
        if not all(each.is_cuda or each.is_pinned() for each in tensors):
            raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")


class _Nvtx:
    """torch._C._nvtx: ranges that mark nothing."""

    def __init__(self) -> None:
        self.depth = 0

    def rangePushA(self, message: str) -> int:  # noqa: N802
        self.depth += 1
        return self.depth - 1

    def rangePop(self) -> int:  # noqa: N802
        self.depth = max(self.depth - 1, 0)
        return self.depth

    def rangeStartA(self, message: str) -> int:  # noqa: N802
        return 0

    def rangeEnd(self, handle: int) -> None:  # noqa: N802
        return None

    def markA(self, message: str) -> None:  # noqa: N802
        return None

    def deviceRangeStart(self, message: str, stream: int) -> object:  # noqa: N802
        return message

    def deviceRangeEnd(self, handle: object, stream: int) -> None:  # noqa: N802
        return None


def _host_statistics() -> dict[str, Any]:
    """`torch.cuda.host_memory_stats` of a process that pinned nothing through CUDA: all keys, all zero."""
    zero = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    keys = ("allocations", "active", "segments", "allocated_bytes", "active_bytes", "reserved_bytes")
    times = {"total": 0, "max": 0, "min": 0, "count": 0, "avg": 0}
    return {
        **{key: dict(zero) for key in keys},
        "num_host_alloc": 0,
        "num_host_free": 0,
        "host_alloc_time": dict(times),
        "host_free_time": dict(times),
    }


def _c_functions(gpus: SimulatedGpus) -> dict[str, object]:
    """The `torch._C._cuda_*` that torch.cuda's Python calls, by name."""
    modes = SimpleNamespace(sync_debug=0, caching=True, metadata="")
    return {
        "_cuda_init": lambda: None,
        "_cuda_synchronize": lambda: None,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_sleep": lambda cycles: None,
        "_cuda_canDeviceAccessPeer": lambda a, b: a != b,
        "_cuda_getCurrentBlasHandle": lambda: 1,
        "_cuda_getCurrentSolverHandle": lambda: 1,
        "_cuda_getCurrentRawStream": lambda i: torch.cuda.current_stream(i).cuda_stream,
        "_cuda_get_sync_debug_mode": lambda: modes.sync_debug,
        "_cuda_set_sync_debug_mode": lambda mode: setattr(modes, "sync_debug", mode),
        "_cuda_isInBadFork": lambda: False,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_memoryStats": gpus.memory_stats,
        "_cuda_resetAccumulatedMemoryStats": gpus.reset_accumulated,
        "_cuda_resetPeakMemoryStats": gpus.reset_peak,
        "_cuda_hostMemoryStats": _host_statistics,
        "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
        "_cuda_resetPeakHostMemoryStats": lambda: None,
        "_cuda_emptyCache": gpus.empty_cache,
        "_host_emptyCache": lambda: None,
        "_cuda_setMemoryFraction": gpus.set_memory_fraction,
        "_cuda_getMemoryFraction": gpus.memory_fraction,
        "_cuda_memorySnapshot": lambda pool=None: gpus.snapshot(),
        "_cuda_record_memory_history": lambda *a, **k: None,
        "_cuda_record_memory_history_legacy": lambda *a, **k: None,
        "_cuda_isHistoryEnabled": lambda: True,
        "_cuda_allocationTraceback": lambda address: None,
        "_cuda_setMemoryMetadata": lambda text: setattr(modes, "metadata", text),
        "_cuda_getMemoryMetadata": lambda: modes.metadata,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_raw_alloc": lambda size, stream: gpus.raw_alloc(size, stream, selected.device),
        "_cuda_cudaCachingAllocator_raw_delete": gpus.raw_delete,
        "_cuda_cudaCachingAllocator_enable": lambda value: setattr(modes, "caching", value),
        "_cuda_cudaCachingAllocator_is_enabled": lambda: modes.caching,
        "_cuda_cudaCachingAllocator_set_allocator_settings": gpus.set_allocator_settings,
        "_cuda_clearCublasWorkspaces": gpus.clear_workspaces,
        "_has_cuda": True,
        "_has_cudnn": True,
    }


def _accelerator_functions(gpus: SimulatedGpus) -> dict[str, object]:
    """The `torch._C._accelerator_*` that torch.accelerator's Python calls, by name."""

    def choose(stream: Any) -> None:
        set_stream(stream.stream_id, stream.device_index)

    def current(index: int) -> Stream:
        return Stream(stream_id=selected.stream_ids.get(index, 0), device_index=index)

    def capability(index: int) -> dict[str, object]:
        kinds = [kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)]
        return {"supported_dtypes": {kind for kind in kinds if not str(kind).startswith(("torch.q", "torch.bits"))}}

    device = torch.device("cuda")
    return {
        "_get_accelerator": lambda check=None: device,
        "_accelerator_getAccelerator": lambda: device if torch.cuda.is_available() else None,
        "_accelerator_getDeviceIndex": lambda: selected.device,
        "_accelerator_setDeviceIndex": exchange_device,
        "_accelerator_exchangeDevice": exchange_device,
        "_accelerator_maybeExchangeDevice": exchange_device,
        "_accelerator_getStream": current,
        "_accelerator_setStream": choose,
        "_accelerator_synchronizeDevice": lambda index: None,
        "_accelerator_getDeviceCapability": capability,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_accelerator_emptyCache": gpus.empty_cache,
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_getDeviceStats": gpus.memory_stats,
        "_accelerator_resetPeakStats": gpus.reset_peak,
        "_accelerator_resetAccumulatedStats": gpus.reset_accumulated,
        "_accelerator_getMemoryInfo": gpus.mem_get_info,
        "_accelerator_setAllocatorSettings": gpus.set_allocator_settings,
    }


def _python_functions(gpus: SimulatedGpus) -> dict[str, object]:
    """What torch.cuda decides in Python from being a CPU build, by name."""
    old = min(_capability(gpus, index) for index in range(gpus.count())) < (7, 5)
    arch = ARCH_LIST_BEFORE_SM75 if old else ARCH_LIST

    def used(device: Any = None) -> int:
        free, total = gpus.mem_get_info(device_index(device))
        return total - free

    return {
        "is_available": lambda: visible_count(gpus.count()) > 0,
        "device_count": lambda: visible_count(gpus.count()),
        "get_arch_list": lambda: list(arch),
        "_compile_kernel": lambda kernel_source, kernel_name, *_, **__: CompiledKernel(),
        "cudart": lambda: Cudart(gpus),
        "_cudart": Cudart(gpus),
        "_get_device_properties": gpus.properties,
        "_is_in_bad_fork": lambda: False,
        "can_device_access_peer": lambda a, b: a != b,
        # sensors of a GPU that does nothing
        "utilization": lambda device=None: 0,
        "memory_usage": lambda device=None: 0,
        "temperature": lambda device=None: 0,
        "power_draw": lambda device=None: 0,
        "clock_rate": lambda device=None: 0,
        "device_memory_used": used,
        "list_gpu_processes": lambda device=None: "no processes are running",
    }


def _capability(gpus: SimulatedGpus, index: int) -> tuple[int, int]:
    properties = gpus.properties(index)
    return properties.major, properties.minor


def _swap(held: Patches, functions: dict[str, object]) -> None:
    """Replace functions of torch.cuda under every name that torch's modules hold for them; add those that are new."""
    swaps = []
    for name, new in functions.items():
        old = vars(torch.cuda).get(name)
        if callable(old):
            swaps.append((old, new))
        held.set(torch.cuda, name, new)
    held.swap_everywhere(swaps)


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """torch.cuda, torch.accelerator, the backend flags and torch.version.cuda for the time of the block."""
    gpus = SimulatedGpus(session)
    cuda_version = CUDA_VERSION_BEFORE_SM75 if _capability(gpus, 0) < (7, 5) else CUDA_VERSION
    with patches() as held:
        held.set(torch.cuda, "_initialized", False)
        held.set(torch.cuda, "_queued_calls", [])
        held.set(torch.cuda, "_cached_device_count", None)
        held.set_all(C, _c_functions(gpus))
        held.set_all(C, _accelerator_functions(gpus))
        _swap(held, {**_python_functions(gpus), "_lazy_init": _lazy_init})
        held.set(torch.cuda.nvtx, "_nvtx", _Nvtx())
        held.set(torch.cuda.nccl, "version", lambda: NCCL_VERSION)
        held.set(torch.cuda.nccl, "is_available", lambda tensors: False)
        held.set(torch.version, "cuda", torch.version.cuda or cuda_version)
        held.set(torch.backends.cudnn, "version", lambda: CUDNN_VERSION)
        if _Initialised.by_cpp:
            held.set(torch.cuda, "_initialized", True)
        try:
            yield
        finally:
            clear = getattr(torch.accelerator.get_device_capability, "cache_clear", None)
            if clear is not None:
                clear()
