"""The fixed forms of messages about memory.

cuBLAS, cuDNN, NCCL, JAX, TensorFlow, vLLM, SGLang, llama.cpp, PyTorch's driver errors and CPU allocator, launchers,
Slurm, the kernel and the shell.
"""

import re
from dataclasses import dataclass
from enum import Enum

SIZE = r"\d+(?:\.\d+)? ?(?:bytes|byte|[KMGT]i?B|B)"


class Kind(str, Enum):
    """What ran out, or what happened instead."""

    DEVICE = "device"  # an allocation on the GPU failed
    LIBRARY = "library"  # cuBLAS, cuDNN or NCCL could not allocate on the GPU, outside PyTorch's allocator
    SERVER = "server"  # an inference server refused to start: its own arithmetic says that it does not fit
    HOST = "host"  # the machine's own memory
    SHARED = "shared_memory"  # /dev/shm
    WORKER = "worker"  # a DataLoader worker died; why is not said
    KILLED = "killed"  # SIGKILL or SIGBUS, by whom is not said
    SUSPECT = "suspect"  # an error that is often a full GPU, and does not say so
    WARNING = "warning"  # the program went on
    SUMMARY = "summary"  # torch.cuda.memory_summary()


@dataclass(frozen=True, slots=True)
class Form:
    """A message that is recognised as a whole; its named groups are fields of Message."""

    format: str
    kind: Kind
    backend: str
    pattern: "re.Pattern[str]"


def _form(name: str, kind: Kind, backend: str, pattern: str) -> Form:
    return Form(name, kind, backend, re.compile(pattern.replace("SIZE", SIZE)))


# the first that matches wins: the one that says more stands first
FORMS = (
    _form(
        "F1",
        Kind.DEVICE,
        "CUDA",
        r"(?i:cuda runtime error) \(2\) ?: out of memory|THCudaCheck FAIL .*error=2 ?: out of"
        r" memory",
    ),
    _form(
        "F22",
        Kind.LIBRARY,
        "NCCL",
        r"(?:\[(?P<device>\d+)\] )?\S+:\d+ (?:NCCL )?WARN Cuda failure (?:\d+ )?'out of memory'",
    ),
    _form(
        "F22",
        Kind.LIBRARY,
        "NCCL",
        r"(?:\[(?P<device>\d+)\] )?(?:\S+:\d+ )?(?:NCCL )?(?:WARN )?Failed to CUDA calloc(?:"
        r" async)? ?(?P<tried_bytes>\d+ bytes)?",
    ),
    _form("F22", Kind.LIBRARY, "NCCL", r"Cuda failure (?:\d+ )?'out of memory'"),
    _form("F22", Kind.SUSPECT, "NCCL", r"ncclUnhandledCudaError|NCCL error in: \S+, unhandled cuda error"),
    _form(
        "F27",
        Kind.DEVICE,
        "llama.cpp",
        r"allocating (?P<tried_bytes>SIZE) on device (?P<device>\d+): \w+ failed: out of memory",
    ),
    _form("F27", Kind.DEVICE, "llama.cpp", r"failed to allocate \w+ buffer of size (?P<plain>\d+)"),
    _form("F12", Kind.DEVICE, "CUDA", r"(?:CUDA|HIP|XPU|NPU) error: out of memory"),
    _form("F12", Kind.DEVICE, "CUDA", r"cudaErrorMemoryAllocation|cudaMalloc failed: out of memory"),
    _form("F13", Kind.SUMMARY, "CUDA", r"PyTorch CUDA memory summary, device ID (?P<device>\d+)"),
    _form("F19", Kind.HOST, "CPU", r"DefaultCPUAllocator: .*you tried to allocate (?P<tried_bytes>\d+ bytes)"),
    _form("F20", Kind.LIBRARY, "cuBLAS", r"(?i:CUBLAS_STATUS_ALLOC_FAILED)"),
    _form("F20", Kind.SUSPECT, "cuBLAS", r"CUBLAS_STATUS_NOT_INITIALIZED"),
    _form("F21", Kind.LIBRARY, "cuDNN", r"CU(?:DNN|SOLVER|SPARSE|FFT)\w*_ALLOC_FAILED"),
    _form("F21", Kind.SUSPECT, "cuDNN", r"CUDNN_STATUS_NOT_INITIALIZED"),
    _form("F23", Kind.DEVICE, "JAX", r"Out of memory while trying to allocate (?P<tried_bytes>\d+ bytes|SIZE)"),
    _form("F24", Kind.DEVICE, "TensorFlow", r"OOM when allocating tensor(?:.* on \S*device:GPU:(?P<device>\d+))?"),
    _form(
        "F24",
        Kind.WARNING,
        "TensorFlow",
        r"Allocator \(GPU_(?P<device>\d+)_bfc\) ran out of memory trying to allocate "
        r"(?P<tried_bytes>SIZE).*not a failure",
    ),
    _form(
        "F24",
        Kind.DEVICE,
        "TensorFlow",
        r"Allocator \(GPU_(?P<device>\d+)_bfc\) ran out of memory trying to allocate "
        r"(?P<tried_bytes>SIZE)",
    ),
    _form("F25", Kind.SERVER, "vLLM", r"No available memory for the cache blocks"),
    _form(
        "F25",
        Kind.SERVER,
        "vLLM",
        r"\(?(?P<tried_bytes>SIZE) KV cache is needed, which is larger than the available KV"
        r" cache memory \((?P<free_bytes>SIZE)\)",
    ),
    _form(
        "F25",
        Kind.SERVER,
        "vLLM",
        r"Free memory on device (?:\S+ )?\((?P<free_gib>[\d.]+)/(?P<total_bytes>[\d.]+ GiB)\) on"
        r" startup is less than desired GPU memory utilization \([\d.]+, "
        r"(?P<tried_bytes>SIZE)\)",
    ),
    _form("F26", Kind.SERVER, "SGLang", r"Not enough memory\. Please try to increase --mem-fraction-static"),
    _form(
        "F30",
        Kind.SHARED,
        "shm",
        r"Unexpected bus error encountered in worker|killed by signal: Bus error|out of shared"
        r" memory",
    ),
    _form("F30", Kind.HOST, "worker", r"DataLoader worker \(pid\S* \d+\) is killed by signal: Killed"),
    _form(
        "F30",
        Kind.WORKER,
        "worker",
        r"DataLoader worker \(pid\S* [\d, ]+\) (?:exited unexpectedly|is killed by signal)",
    ),
    _form("F31", Kind.HOST, "Slurm", r"Detected \d+ oom[-_]kill event"),
    _form("F31", Kind.HOST, "Slurm", r"srun: error: .*task \d+.*: Out Of Memory"),
    _form(
        "F31",
        Kind.HOST,
        "kernel",
        r"Out of memory: Killed process \d+|Memory cgroup out of memory|oom-kill:constraint"
        r"|OOMKilled",
    ),
    _form(
        "F19",
        Kind.HOST,
        "CPU",
        r"\[Errno 12\] Cannot allocate memory|MemoryError: Unable to allocate "
        r"(?P<tried_bytes>SIZE)",
    ),
    _form("F28", Kind.KILLED, "DeepSpeed", r"exits with return code = -(?P<signal>[79])\b"),
    _form(
        "F29",
        Kind.KILLED,
        "torchrun",
        r"failed \(exitcode: -(?P<signal>[79])\b[^)]*\) local_rank: (?P<local_rank>\d+)",
    ),
    _form("F29", Kind.KILLED, "torchrun", r"Signal (?P<signal>[79]) \(SIG(?:KILL|BUS)\) received by PID"),
    _form("F32", Kind.KILLED, "shell", r"(?i:exit(?:ed with)?[ _]?(?:code|status))[ :=]{1,3}1(?:37|35)\b"),
    _form("F31", Kind.KILLED, "shell", r"^\S+: line \d+:\s+\d+ Killed\s"),
    _form("F32", Kind.KILLED, "shell", r"^Killed\s*$"),
)
