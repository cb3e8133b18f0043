"""The GPUs of this machine through NVML, without importing torch or making a CUDA context."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    index: int
    name: str
    driver: str
    total_bytes: int
    used_bytes: int
    processes: tuple[tuple[int, int], ...]  # process id, bytes; empty where the driver does not tell


def cards() -> list[Card] | str:
    """Every card, or why none can be seen."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [_card(pynvml, index) for index in range(count)] or "NVML sees no device"
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    finally:
        pynvml.nvmlShutdown()


def _card(pynvml: Any, index: int) -> Card:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Card(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        driver=_text(pynvml.nvmlSystemGetDriverVersion()),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        processes=tuple(
            (int(process.pid), int(process.usedGpuMemory))
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if process.usedGpuMemory is not None
        ),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def has_cuda() -> bool:
    """A card that NVML sees and that CUDA_VISIBLE_DEVICES does not hide."""
    import os

    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return not isinstance(cards(), str)
