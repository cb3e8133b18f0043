"""Messages as public issue threads have them, one or more of each form, read to their numbers."""

import io
from typing import Any

import pytest
from oomdoc.diagnosers import fragmentation
from oomdoc.diagnosers.from_log import FRAGMENTATION, cached, derive, read, reserved
from oomdoc.diagnosers.log_lines import CHUNK_BYTES, Scan
from oomdoc.diagnosers.oom_forms import Kind
from oomdoc.diagnosers.oom_messages import Message, parse

HINT = "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def gib(value: float) -> int:
    return round(value * 2**30)


def mib(value: float) -> int:
    return round(value * 2**20)


def kib(value: float) -> int:
    return round(value * 2**10)


NUMBERED: list[tuple[str, str, dict[str, Any]]] = [
    (  # pytorch/pytorch 16417
        "F2",
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; "
        "8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)",
        {
            "device": 0,
            "tried_bytes": mib(12.5),
            "total_bytes": gib(10.92),
            "allocated_bytes": mib(8.57),
            "free_bytes": gib(9.28),
            "cached_bytes": mib(4.68),
        },
    ),
    (  # pytorch/pytorch 67971
        "F3",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 6.00 GiB total capacity; "
        "4.88 GiB already allocated; 0 bytes free; 4.96 GiB reserved in total by PyTorch)",
        {
            "device": 0,
            "tried_bytes": mib(2),
            "total_bytes": gib(6),
            "allocated_bytes": gib(4.88),
            "free_bytes": 0,
            "reserved_bytes": gib(4.96),
        },
    ),
    (  # matthias-k/DeepGaze 7
        "F4",
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 3.82 GiB total capacity; "
        "1.99 GiB already allocated; 16.00 MiB free; 2.00 GiB reserved in total by PyTorch) If reserved "
        "memory is &gt;&gt; allocated memory try setting max_split_size_mb to avoid fragmentation.",
        {
            "device": 0,
            "tried_bytes": mib(20),
            "total_bytes": gib(3.82),
            "allocated_bytes": gib(1.99),
            "free_bytes": mib(16),
            "reserved_bytes": gib(2),
        },
    ),
    (  # CompVis/taming-transformers 194
        "F5",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.39 GiB (GPU 0; 6.00 GiB "
        "total capacity; 4.04 GiB already allocated; 478.00 MiB free; 4.15 GiB reserved in total by "
        "PyTorch) If reserved memory is >> allocated",
        {
            "device": 0,
            "tried_bytes": gib(1.39),
            "total_bytes": gib(6),
            "allocated_bytes": gib(4.04),
            "free_bytes": mib(478),
            "reserved_bytes": gib(4.15),
        },
    ),
    (  # the clause of pytorch/pytorch 111729
        "F5b",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 1; 6.00 GiB "
        "total capacity; 4.04 GiB already allocated; 478.00 MiB free; 4.77 GiB allowed; 4.74 GiB "
        "reserved in total by PyTorch)",
        {
            "device": 1,
            "tried_bytes": gib(1),
            "total_bytes": gib(6),
            "allocated_bytes": gib(4.04),
            "free_bytes": mib(478),
            "allowed_bytes": gib(4.77),
            "reserved_bytes": gib(4.74),
        },
    ),
    (  # kerrj/lerf 73
        "F6",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total "
        "capacty of 23.65 GiB of which 1.66 GiB is free. Including non-PyTorch memory, this process has "
        "20.81 GiB memory in use. Of the allocated memory 12.09 GiB is allocated by PyTorch, and 4.84 "
        "GiB is reserved by PyTorch but unallocated.",
        {
            "device": 0,
            "tried_bytes": gib(3),
            "total_bytes": gib(23.65),
            "free_bytes": gib(1.66),
            "process_bytes": gib(20.81),
            "allocated_bytes": gib(12.09),
            "cached_bytes": gib(4.84),
        },
    ),
    (  # derrian-distro/LoRA_Easy_Training_Scripts 178
        "F7",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 MiB. GPU 0 has a total "
        "capacity of 8.00 GiB of which 0 bytes is free. Of the allocated memory 7.13 GiB is allocated by "
        "PyTorch, and 127.09 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        {
            "device": 0,
            "tried_bytes": mib(90),
            "total_bytes": gib(8),
            "free_bytes": 0,
            "allocated_bytes": gib(7.13),
            "cached_bytes": mib(127.09),
        },
    ),
    (  # murong-xu/CADS 4
        "F8",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total "
        "capacity of 31.47 GiB of which 12.73 GiB is free. Including non-PyTorch memory, this process "
        "has 18.73 GiB memory in use. Of the allocated memory 9.08 GiB is allocated by PyTorch, and 9.35 "
        "GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        {
            "device": 0,
            "tried_bytes": gib(22.78),
            "total_bytes": gib(31.47),
            "free_bytes": gib(12.73),
            "process_bytes": gib(18.73),
            "allocated_bytes": gib(9.08),
            "cached_bytes": gib(9.35),
        },
    ),
    (  # QwenLM/Qwen2.5-Omni 240
        "F9",
        "CUDA out of memory. Tried to allocate 124.68 GiB. GPU 0 has a total capacity of 95.22 GiB of "
        "which 51.23 GiB is free. Process 608946 has 14.91 GiB memory in use. Process 734147 has 29.07 "
        "GiB memory in use. Of the allocated memory 25.50 GiB is allocated by PyTorch, and 3.14 GiB is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        {
            "device": 0,
            "tried_bytes": gib(124.68),
            "total_bytes": gib(95.22),
            "free_bytes": gib(51.23),
            "processes": ((608946, gib(14.91)), (734147, gib(29.07))),
            "allocated_bytes": gib(25.5),
            "cached_bytes": gib(3.14),
        },
    ),
    (  # kaito-project/kaito 976
        "F10",
        "ERROR 04-01 23:46:56 [engine.py:160] torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 514.19 MiB is free. "
        "Process 562167 has 15.25 GiB memory in use. Of the allocated memory 13.73 GiB is allocated by "
        "PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA Graphs), and 736.86 MiB is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        {
            "device": 0,
            "tried_bytes": mib(546),
            "total_bytes": gib(15.77),
            "free_bytes": mib(514.19),
            "processes": ((562167, gib(15.25)),),
            "allocated_bytes": gib(13.73),
            "private_pool_bytes": mib(46),
            "cached_bytes": mib(736.86),
        },
    ),
    (  # ROCm/TheRock 2118
        "F11",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total "
        "capacity of 255.98 GiB of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory "
        "1017.01 MiB is allocated by PyTorch, with 17.00 MiB allocated in private pools (e.g., HIP "
        "Graphs), and 54.99 MiB is reserved by PyTorch but unallocated.",
        {
            "backend": "HIP",
            "device": 0,
            "tried_bytes": mib(2),
            "total_bytes": gib(255.98),
            "free_bytes": gib(244.65),
            "allowed_bytes": gib(1.05),
            "allocated_bytes": mib(1017.01),
            "private_pool_bytes": mib(17),
            "cached_bytes": mib(54.99),
        },
    ),
    (  # Comfy-Org/ComfyUI 9529
        "F14",
        "HIP out of memory. Tried to allocate 432.00 MiB. GPU 7 has a total capacity of 15.92 GiB of "
        "which 7.12 GiB is free. Of the allocated memory 8.08 GiB is allocated by PyTorch, and 321.96 "
        "MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_HIP_ALLOC_CONF=",
        {
            "backend": "HIP",
            "device": 7,
            "tried_bytes": mib(432),
            "total_bytes": gib(15.92),
            "free_bytes": gib(7.12),
            "allocated_bytes": gib(8.08),
            "cached_bytes": mib(321.96),
        },
    ),
    (  # intel/intel-extension-for-pytorch 629
        "F15",
        "RuntimeError: XPU out of memory. Tried to allocate 1.00 GiB (GPU 0; 15.56 GiB total capacity; "
        "990.00 MiB already allocated; 990.00 MiB reserved in total by PyTorch)",
        {
            "backend": "XPU",
            "device": 0,
            "tried_bytes": gib(1),
            "total_bytes": gib(15.56),
            "allocated_bytes": mib(990),
            "reserved_bytes": mib(990),
        },
    ),
    (  # intel/torch-xpu-ops 3011
        "F16",
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total "
        "capacity of 5.65 GiB of which 5.65 GiB is free. Of the allocated memory 195.50 KiB is allocated "
        "by PyTorch, and 1.81 MiB is reserved by PyTorch but unallocated. Please use `empty_cache` to "
        "release all unoccupied cached memory.",
        {
            "backend": "XPU",
            "device": 0,
            "tried_bytes": gib(4.66),
            "total_bytes": gib(5.65),
            "free_bytes": gib(5.65),
            "allocated_bytes": kib(195.5),
            "cached_bytes": mib(1.81),
        },
    ),
    (  # pytorch/pytorch 96814: GB means GiB
        "F17",
        "RuntimeError: MPS backend out of memory (MPS allocated: 7.43 GB, other allocations: 24.46 GB, "
        "max allowed: 32.00 GB). Tried to allocate 129.21 MB on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable",
        {
            "backend": "MPS",
            "tried_bytes": mib(129.21),
            "allocated_bytes": gib(7.43),
            "other_bytes": gib(24.46),
            "allowed_bytes": gib(32),
        },
    ),
    (  # sgl-project/sglang 29838
        "F18",
        "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 72.00 MiB (NPU 3; 61.27 GiB total "
        "capacity; 56.05 GiB already allocated; 56.05 GiB current active; 5.04 MiB free; 58.39 GiB "
        "reserved in total by PyTorch).If reserved",
        {
            "backend": "NPU",
            "device": 3,
            "tried_bytes": mib(72),
            "total_bytes": gib(61.27),
            "allocated_bytes": gib(56.05),
            "active_bytes": gib(56.05),
            "free_bytes": mib(5.04),
            "reserved_bytes": gib(58.39),
        },
    ),
]

OTHERS: list[tuple[str, Kind, str, dict[str, Any]]] = [
    (
        "F1",
        Kind.DEVICE,
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/torch/lib/THC/generic/THCStorage.cu:58",
        {},
    ),
    (
        "F1",
        Kind.DEVICE,
        "THCudaCheck FAIL file=/pytorch/torch/lib/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
        {},
    ),
    ("F12", Kind.DEVICE, "RuntimeError: CUDA error: out of memory", {}),
    (
        "F12",
        Kind.DEVICE,
        "torch.AcceleratorError: CUDA error: out of memorySearch for `cudaErrorMemoryAllocation' in https",
        {},
    ),
    (
        "F13",
        Kind.SUMMARY,
        "|                  PyTorch CUDA memory summary, device ID 2                 |",
        {"device": 2},
    ),
    (
        "F19",
        Kind.HOST,
        "RuntimeError: [enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 116813856768 bytes. Error code 12 (Cannot allocate memory)",
        {"tried_bytes": 116813856768},
    ),
    (
        "F19",
        Kind.HOST,
        "RuntimeError: [enforce fail at CPUAllocator.cpp:73] data. DefaultCPUAllocator: not enough "
        "memory: you tried to allocate 473909280 bytes. Buy new RAM!",
        {"tried_bytes": 473909280},
    ),
    (
        "F20",
        Kind.LIBRARY,
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        {},
    ),
    ("F21", Kind.SUSPECT, "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", {}),
    ("F21", Kind.LIBRARY, "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED", {}),
    (
        "F22",
        Kind.LIBRARY,
        "node-b:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
        {"device": 3},
    ),
    (
        "F22",
        Kind.LIBRARY,
        "node-b:3063028:3066152 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",
        {"device": 3, "tried_bytes": 6291456},
    ),
    ("F22", Kind.LIBRARY, "node-c:101211:106353 [0] init.cu:218 WARN Cuda failure 'out of memory'", {"device": 0}),
    ("F22", Kind.SUSPECT, "[rank7]: ncclUnhandledCudaError: Call to CUDA function failed.", {"rank": 7}),
    (
        "F23",
        Kind.DEVICE,
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 6291456 bytes.",
        {"tried_bytes": 6291456},
    ),
    (
        "F24",
        Kind.DEVICE,
        "ResourceExhaustedError (see above for traceback): OOM when allocating tensor with "
        "shape[64,2016,9,9] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator "
        "GPU_1_bfc",
        {"device": 1},
    ),
    (
        "F24",
        Kind.WARNING,
        "W tensorflow/core/common_runtime/bfc_allocator.cc:239] Allocator (GPU_0_bfc) ran out of memory "
        "trying to allocate 3.34GiB with freed_by_count=0. The caller indicates that this is not a "
        "failure, but ...",
        {"device": 0, "tried_bytes": gib(3.34)},
    ),
    (
        "F25",
        Kind.SERVER,
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        {},
    ),
    (
        "F25",
        Kind.SERVER,
        "ValueError: To serve at least one request with the models's max seq len (131072), (4.54 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (1.71 GiB).",
        {"tried_bytes": gib(4.54), "free_bytes": gib(1.71)},
    ),
    (
        "F25",
        Kind.SERVER,
        "ValueError: To serve at least one request with the model's max seq len (196608), 23.25 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (22.5 GiB).",
        {"tried_bytes": gib(23.25), "free_bytes": gib(22.5)},
    ),
    (
        "F25",
        Kind.SERVER,
        "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.24 GiB). Decrease GPU memory utilization",
        {"free_bytes": gib(59.32), "total_bytes": gib(79.15), "tried_bytes": gib(71.24)},
    ),
    ("F26", Kind.SERVER, "Not enough memory. Please try to increase --mem-fraction-static", {}),
    (
        "F27",
        Kind.DEVICE,
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 144817.04 MiB on device 0: cudaMalloc "
        "failed: out of memory",
        {"device": 0, "tried_bytes": mib(144817.04)},
    ),
    (
        "F27",
        Kind.DEVICE,
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624",
        {"tried_bytes": 151851674624},
    ),
    (
        "F28",
        Kind.KILLED,
        "[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['python3', '-u', 'main.py', "
        "'--local_rank=0'] exits with return code = -9",
        {"local_rank": 0},
    ),
    (
        "F28",
        Kind.SHARED,
        "[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['python3'] exits with return code = -7",
        {},
    ),
    (
        "F29",
        Kind.KILLED,
        "E0325 20:57:27.620000 2606 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] "
        "failed (exitcode: -9) local_rank: 5 (pid: 2630) of binary: /opt/conda/bin/python",
        {"local_rank": 5, "rank": None},
    ),
    ("F29", Kind.KILLED, "  traceback : Signal 9 (SIGKILL) received by PID 14750", {}),
    (
        "F30",
        Kind.SHARED,
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        {},
    ),
    (
        "F30",
        Kind.SHARED,
        "RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory.",
        {},
    ),
    ("F30", Kind.WORKER, "RuntimeError: DataLoader worker (pid(s) 3216) exited unexpectedly", {}),
    ("F30", Kind.HOST, "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.", {}),
    (
        "F31",
        Kind.KILLED,
        "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py",
        {},
    ),
    (
        "F31",
        Kind.HOST,
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some of your "
        "processes may have been killed by the cgroup out-of-memory handler.",
        {},
    ),
    (
        "F31",
        Kind.HOST,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have "
        "been OOM Killed.",
        {},
    ),
    ("F31", Kind.HOST, "srun: error: node6156: task 4: Out Of Memory", {"rank": 4}),
    ("F32", Kind.KILLED, "Killed", {}),
]

EVERY = [line for _, line, _ in NUMBERED] + [line for _, _, line, _ in OTHERS]


@pytest.mark.parametrize(("form", "line", "numbers"), NUMBERED, ids=[row[0] for row in NUMBERED])
def test_the_sentences_of_the_allocators(form: str, line: str, numbers: dict[str, Any]) -> None:
    """Every number that is printed, and None for every one that is not."""
    (message,) = parse(line)
    assert message == Message(
        **{"format": form, "kind": Kind.DEVICE, "backend": "CUDA", "text": message.text, **numbers}
    )


@pytest.mark.parametrize(
    ("form", "kind", "line", "numbers"), OTHERS, ids=[f"{row[0]}-{row[2][-30:]}" for row in OTHERS]
)
def test_the_fixed_forms(form: str, kind: Kind, line: str, numbers: dict[str, Any]) -> None:
    """What ran out, told apart, with the numbers that the form carries and no other."""
    (message,) = parse(line)
    assert (message.format, message.kind) == (form, kind)
    for name in Message.__dataclass_fields__:
        if name not in ("format", "kind", "backend", "text", "processes"):
            assert getattr(message, name) == numbers.get(name), name


@pytest.mark.parametrize(
    ("prefix", "rank", "local_rank"),
    [
        ("[rank3]: ", 3, None),
        ("3: ", 3, None),
        ("0: [rank12]: ", 12, None),
        ("[default5]:[rank13]: ", 13, 5),
        ("\x1b[31m[rank2]:\x1b[0m ", 2, None),
        ("2025-11-12T11:25:13.4961658Z FAILED [0.0005s] - ", None, None),
        ("(EngineCore_DP0 pid=6880) ", None, None),
        ("vllm-1  | ", None, None),
    ],
)
def test_prefixes(prefix: str, rank: int | None, local_rank: int | None) -> None:
    """Whose message it is, where the line says so."""
    (message,) = parse(prefix + NUMBERED[7][1])
    assert (message.rank, message.local_rank, message.tried_bytes) == (rank, local_rank, gib(22.78))


def test_colours_within_the_message() -> None:
    (message,) = parse(NUMBERED[6][1].replace("90.00 MiB", "\x1b[1;31m90.00 MiB\x1b[0m"))
    assert message.tried_bytes == mib(90)


def test_a_message_that_a_console_broke_at_80_columns() -> None:
    """It is joined; the line of another rank behind it is not."""
    text = NUMBERED[5][1]
    lines = [text[at : at + 80] for at in range(0, len(text), 80)]
    (message,) = parse(lines[0], "\n".join(lines[1:]))
    assert message.cached_bytes == gib(4.84)
    (message,) = parse(lines[0], "[rank1]: " + NUMBERED[6][1])
    assert message.total_bytes is None
    assert message.cached_bytes is None


def test_the_table_of_memory_summary() -> None:
    after = (
        "|---|\n| Allocated memory      |  659155 KB |    4460 MB |\n| GPU reserved memory   |  14356 MiB |  1 MiB |\n"
    )
    (message,) = parse("|  PyTorch CUDA memory summary, device ID 0   |", after)
    assert (message.allocated_bytes, message.reserved_bytes) == (659155 * 1024, 14356 * 2**20)


@pytest.mark.parametrize(
    "line",
    [
        "step 3 loss 0.4 memory: 5321 of 81920",
        "we must not run out of memory here",
        "the process was killed by the user",
        "Killed 3 dragons",
        "if you get CUDA out of memory. lower the batch size",
        "exitcode: -11",
        "exits with return code = 1",
        "cuBLAS workspace allocated",
    ],
)
def test_what_is_no_message(line: str) -> None:
    assert parse(line) == ()


@pytest.mark.parametrize("line", EVERY, ids=range(len(EVERY)))
def test_the_search_finds_every_form_wherever_it_lies(line: str) -> None:
    """At each alignment, at the beginning, at the end without a newline, and across the border of two pieces."""
    for shift in range(4):
        before = b"x" * shift + b"\n"
        (found,) = Scan(io.BytesIO(before + line.encode() + b"\nlast\n"))
        assert (found.number, found.line) == (2, line)
    (found,) = Scan(io.BytesIO(line.encode()))
    assert (found.number, found.line) == (1, line)
    filler = b"step 1 loss 2.0\n" * (CHUNK_BYTES // 16)
    for cut in (1, len(line) // 2):
        scan = Scan(
            io.BytesIO(
                filler[: 16 * (CHUNK_BYTES // 16 - 9)] + b"y" * (143 - cut) + b"\n" + line.encode() + b"\n" + filler
            )
        )
        (found,) = scan
        assert found.line == line
        assert found.number == CHUNK_BYTES // 16 - 9 + 2
        assert scan.lines == found.number + CHUNK_BYTES // 16


def test_a_large_log_of_interleaved_ranks() -> None:
    """Megabytes, eight ranks, each fails once and repeats it while the exception is handled."""
    steps = [f"[rank{step % 8}]: step={step} loss=0.5 memory: {step} of 9\n".encode() for step in range(60_000)]
    for rank in range(8):
        line = f"[rank{rank}]: torch.OutOfMemoryError: " + NUMBERED[6][1].replace("GPU 0", f"GPU {rank}") + "\n"
        steps[50_000 + 3 * rank] = line.encode()
        steps[55_000 + 3 * rank] = line.encode()
    log = read([("train.log", io.BytesIO(b"".join(steps)))])
    assert log.lines == 60_000
    assert log.bytes == sum(map(len, steps))
    assert [(each.message.rank, each.message.device, each.line, each.times) for each in log.devices] == [
        (rank, rank, 50_001 + 3 * rank, 2) for rank in range(8)
    ]


def test_a_line_that_never_ends() -> None:
    """A progress bar writes no newline for megabytes; the message at its end is found."""
    bar = b"\r 50%|#####     | 1/2 [00:01<00:01]" * 70_000
    log = read([("bar.log", io.BytesIO(bar + b"\r" + NUMBERED[7][1].encode() + b"\n"))])
    assert [each.message.tried_bytes for each in log.devices] == [gib(22.78)]


def test_a_log_of_wide_characters_and_few_lines() -> None:
    """Each two bytes of UTF-16 become three of UTF-8: more than was asked for."""
    text = "\ufeff" + "\u8bad" * 400_000 + "\n" + NUMBERED[7][1] + "\n"
    stream = io.BufferedReader(io.BytesIO(text.encode("utf-16-le")))  # type: ignore[arg-type]
    log = read([("out.log", stream)])
    assert [(each.line, each.message.tried_bytes) for each in log.devices] == [(2, gib(22.78))]


def test_the_code_of_fragmentation_is_its_module_s() -> None:
    assert FRAGMENTATION == fragmentation.CODE


def test_utf16_as_powershell_writes_it() -> None:
    stream = io.BufferedReader(io.BytesIO(("ok\n" + NUMBERED[7][1] + "\n").encode("utf-16")))  # type: ignore[arg-type]
    log = read([("out.log", stream)])
    assert [(each.line, each.message.tried_bytes) for each in log.devices] == [(2, gib(22.78))]


def test_derived_figures() -> None:
    """F6a: 23.65 GiB card, 1.66 free, 20.81 in this process, 12.09 + 4.84 in its allocator; 3.00 asked for."""
    (message,) = parse(NUMBERED[5][1])
    derived = derive(message)
    assert reserved(message) == gib(12.09) + gib(4.84)
    assert derived.outside_bytes == gib(23.65) - gib(1.66) - gib(12.09) - gib(4.84)
    assert derived.own_outside_bytes == gib(20.81) - gib(12.09) - gib(4.84)
    assert derived.others_bytes == gib(23.65) - gib(1.66) - gib(20.81)
    assert (derived.fragmentation_possible, derived.setting_can_help) == (True, True)
    (message,) = parse(NUMBERED[7][1])  # 22.78 asked, 12.73 free, 9.35 cached
    assert derive(message).fragmentation_possible is False
    assert derive(message).setting_can_help is False


def test_numbers_that_contradict_each_other_give_none() -> None:
    """YingqianWang/iPASSR 9: on Windows the driver counts memory of the host."""
    (message,) = parse(
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 17.20 GiB "
        "already allocated; 0 bytes free; 19.15 GiB reserved in total by PyTorch)"
    )
    assert cached(message) == gib(19.15) - gib(17.20)
    derived = derive(message)
    assert (derived.outside_bytes, derived.fragmentation_possible, derived.setting_can_help) == (None, None, None)
