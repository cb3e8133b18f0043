"""The GPUs of this machine through NVML, without importing torch or making a CUDA context."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds memory of a card. `name` None: it is gone, or not ours to look at."""

    pid: int
    used_bytes: int
    name: str | None = None
    alive: bool = True  # False: a zombie, or no such process in this machine's (or container's) view


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A MIG instance: what a process on it can use, beside the whole card's figures."""

    index: int
    uuid: str
    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    index: int
    name: str
    driver: str
    total_bytes: int
    used_bytes: int
    uuid: str = ""
    reserved_bytes: int = 0  # by the driver and firmware: neither used nor free; 0 where NVML does not tell
    holders: tuple[Holder, ...] = ()
    holders_told: bool = True  # False: the driver does not tell who holds what (containers, Windows, some vGPUs)
    mig: tuple[Slice, ...] | None = None  # None: MIG is off, or not a thing of this card

    @property
    def unexplained_bytes(self) -> int:
        """Used, and by no process that NVML names: contexts outside this container, or left by a dead process."""
        return max(0, self.used_bytes - sum(each.used_bytes for each in self.holders))


def cards() -> list[Card] | str:
    """Every card, or why none can be seen."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        with _initialised(pynvml):
            driver = _text(pynvml.nvmlSystemGetDriverVersion())
            return [_card(pynvml, i, driver) for i in range(pynvml.nvmlDeviceGetCount())] or "NVML sees no device"
    except pynvml.NVMLError as error:
        return f"NVML: {error}"


@contextmanager
def _initialised(pynvml: Any) -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _card(pynvml: Any, index: int, driver: str) -> Card:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory, reserved = _memory(pynvml, handle)
    holders = _holders(pynvml, handle)
    return Card(
        index=index,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        driver=driver,
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        uuid=_text(_optional(pynvml, lambda: pynvml.nvmlDeviceGetUUID(handle), "")),
        reserved_bytes=reserved,
        holders=holders or (),
        holders_told=holders is not None,
        mig=_slices(pynvml, handle),
    )


def _memory(pynvml: Any, handle: Any) -> tuple[Any, int]:
    """Version 2 of the record tells the driver's own share apart; version 1 counts it as used."""
    version = getattr(pynvml, "nvmlMemory_v2", None)
    if version is not None:
        found = _optional(pynvml, lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=version), None)
        if found is not None:
            return found, int(getattr(found, "reserved", 0))
    return pynvml.nvmlDeviceGetMemoryInfo(handle), 0


def _holders(pynvml: Any, handle: Any) -> tuple[Holder, ...] | None:
    """Compute and graphics processes, each once; None where the driver tells no bytes."""
    found: dict[int, int] = {}
    told = True
    for ask in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in _optional(pynvml, lambda ask=ask: getattr(pynvml, ask)(handle), ()):
            if process.usedGpuMemory is None:  # NVML_VALUE_NOT_AVAILABLE
                told = False
            else:
                found[int(process.pid)] = max(found.get(int(process.pid), 0), int(process.usedGpuMemory))
    if not told and not found:
        return None
    return tuple(
        Holder(pid=pid, used_bytes=used, name=process_name(pid), alive=_alive(pid))
        for pid, used in sorted(found.items(), key=lambda each: -each[1])
    )


def _slices(pynvml: Any, handle: Any) -> tuple[Slice, ...] | None:
    mode = _optional(pynvml, lambda: pynvml.nvmlDeviceGetMigMode(handle), None)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for index in range(_optional(pynvml, lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle), 0)):
        part = _optional(pynvml, lambda i=index: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i), None)
        if part is not None:
            memory, _ = _memory(pynvml, part)
            uuid = _text(_optional(pynvml, lambda p=part: pynvml.nvmlDeviceGetUUID(p), ""))
            found.append(Slice(index=index, uuid=uuid, total_bytes=int(memory.total), used_bytes=int(memory.used)))
    return tuple(found)


def _optional(pynvml: Any, ask: Any, default: Any) -> Any:
    """A figure that this card or driver may not have."""
    try:
        return ask()
    except (pynvml.NVMLError, AttributeError):
        return default


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def process_name(pid: int) -> str | None:
    """`python train.py`, shortened; None where it cannot be seen."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    named = [word.rsplit("/", 1)[-1] for word in words if word and not word.startswith("-")]
    return " ".join(named[:2])[:60] or None


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return not Path("/proc/self").exists()  # no /proc here: not known to be dead
    return state != "Z"


def has_cuda() -> bool:
    """A card that NVML sees and that CUDA_VISIBLE_DEVICES does not hide; or an accelerator that was named."""
    if os.environ.get("OOMDOC_ACCELERATOR"):
        return True
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return not isinstance(cards(), str)
