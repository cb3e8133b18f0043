"""The seam between the recorder and a GPU's memory: the few calls of torch that it rests on, private ones included.

Signatures are those of torch 2.6 to 2.14 (`torch/cuda/memory.py`, `torch/xpu/memory.py`, `torch/_C/__init__.pyi`);
`tests/recorders/test_accelerator.py` holds them against the torch that is installed. Another backend, in tree or not,
takes this one's place by being named: OOMDOC_ACCELERATOR=package.module:Class.
"""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from ..errors import OomdocError

VARIABLE = "OOMDOC_ACCELERATOR"
StackKind = Literal["python", "all"]
OnOom = Callable[[int, int, int, int], None]  # device, bytes asked for, the device's total, bytes it has free


@dataclass(frozen=True, slots=True)
class Counted:
    """How often the allocator of one device handed out a block, and took one back, since the process began."""

    allocations: int
    frees: int


class Accelerator(Protocol):
    """The memory of the GPUs of one kind that this process uses. Devices are indices as torch counts them."""

    type: str  # of torch.device

    def available(self) -> str | None:
        """None, or why nothing can be recorded here."""
        ...

    def start(self, *, max_entries: int, stacks: StackKind) -> None:
        """Keep a history of up to `max_entries` events per device; before the device is first used."""
        ...

    def stop(self) -> None: ...

    def observe_oom(self, call: OnOom) -> bool:
        """Have `call` called before an out-of-memory error is raised. False: this backend cannot."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Segments and traces of all devices, in PyTorch's own form."""
        ...

    def devices(self) -> list[int]:
        """Those that this process has used; empty before the first use."""
        ...

    def counted(self, device: int) -> Counted: ...

    def label(self, text: str) -> None:
        """From here on, events of this thread carry `text` as `user_metadata`; nothing where torch has no labels."""
        ...

    def address_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Device and first address of the tensor's allocation; None for one elsewhere, or without memory."""
        ...

    def free_and_total(self, device: int) -> tuple[int, int]:
        """What the driver has free, and what the card has; bytes."""
        ...

    def allocated(self, device: int) -> tuple[int, int, int]:
        """Allocated now, the highest so far, reserved now; bytes."""
        ...

    def out_of_memory_errors(self, device: int) -> int: ...

    def identity(self, device: int) -> tuple[str, str]:
        """The card's name, and what tells it from every other card (its UUID)."""
        ...


class Cuda:
    """NVIDIA (and, with a ROCm build of torch, AMD) GPUs: `torch.cuda`."""

    type = "cuda"
    module: Any = torch.cuda

    def __init__(self) -> None:
        self._own: Any = None  # _record_memory_history as the script would have found it
        set_label = getattr(self.module.memory, "_set_memory_metadata", None)
        self._set_label: Callable[[str], None] | None = set_label
        self.ignored = 0  # calls of the script to record a history of its own

    def available(self) -> str | None:
        """Asks the build alone: to ask the driver would initialise it, and the script may still fork."""
        if not self.built():
            return f"torch {torch.__version__} is built without {self.type.upper()}"
        backend = getattr(self.module.memory, "get_allocator_backend", lambda: "native")()
        if backend != "native":
            return f"the allocator backend {backend} keeps no history; unset backend: in PYTORCH_ALLOC_CONF"
        return None

    def built(self) -> bool:
        backends: Any = torch.backends
        return bool(backends.cuda.is_built())

    def start(self, *, max_entries: int, stacks: StackKind) -> None:
        """Queued until the device is initialised: a script may set CUDA_VISIBLE_DEVICES, or fork, before it."""
        record = self.module.memory._record_memory_history
        self.module._lazy_call(lambda: record(enabled="all", context="all", stacks=stacks, max_entries=max_entries))
        self._own = record

        def already_recording(*args: Any, **kwargs: Any) -> None:
            self.ignored += 1  # it would end or shorten the history that is being kept

        self.module.memory._record_memory_history = already_recording

    def stop(self) -> None:
        if self._own is not None:
            self.module.memory._record_memory_history = self._own
            if self.module.is_initialized():
                self._own(enabled=None)
            self._own = None

    def observe_oom(self, call: OnOom) -> bool:
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None:
            return False
        self.module._lazy_call(lambda: attach(call))
        return True

    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = self.module.memory._snapshot()
        return found

    def devices(self) -> list[int]:
        if not self.module.is_initialized():
            return []
        return [index for index in range(self.module.device_count()) if self._stats(index)]

    def _stats(self, device: int) -> Any:
        """The nested form: half of `memory_stats`' time goes into flattening it."""
        stats = self.module.memory.memory_stats_as_nested_dict(device) if self.module.is_initialized() else {}
        return stats if stats and stats["allocation"]["all"]["allocated"] else {}

    def counted(self, device: int) -> Counted:
        stats = self._stats(device)
        if not stats:
            return Counted(0, 0)
        of_all = stats["allocation"]["all"]
        return Counted(int(of_all["allocated"]), int(of_all["freed"]))

    def label(self, text: str) -> None:
        if self._set_label is not None:
            self._set_label(text)

    def address_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        if not tensor.is_cuda:
            return None
        try:  # a tenth of the time of asking its storage
            address = int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())
        except (NotImplementedError, RuntimeError, ValueError):  # sparse, functorch wrappers, fake, lazy ones
            return None
        return (tensor.get_device(), address) if address > 0 else None

    def free_and_total(self, device: int) -> tuple[int, int]:
        free, total = self.module.mem_get_info(device)
        return int(free), int(total)

    def allocated(self, device: int) -> tuple[int, int, int]:
        stats = self._stats(device)
        if not stats:
            return 0, 0, 0
        held = stats["allocated_bytes"]["all"]
        return int(held["current"]), int(held["peak"]), int(stats["reserved_bytes"]["all"]["current"])

    def out_of_memory_errors(self, device: int) -> int:
        stats = self._stats(device)
        return int(stats["num_ooms"]) if stats else 0

    def identity(self, device: int) -> tuple[str, str]:
        properties = self.module.get_device_properties(device)
        return str(properties.name), str(getattr(properties, "uuid", ""))


class Xpu(Cuda):
    """Intel GPUs: `torch.xpu`, from the torch on that keeps a history for them. It has no observer for failures."""

    type = "xpu"
    module: Any = getattr(torch, "xpu", None)

    def built(self) -> bool:
        return getattr(torch.version, "xpu", None) is not None

    def available(self) -> str | None:
        if not hasattr(self.module.memory, "_record_memory_history"):
            return f"torch {torch.__version__} keeps no memory history for xpu; a newer one does"
        return super().available()

    def observe_oom(self, call: OnOom) -> bool:
        return False

    def address_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        if not tensor.is_xpu:
            return None
        address = tensor.untyped_storage().data_ptr()
        return (tensor.get_device(), address) if address else None

    def out_of_memory_errors(self, device: int) -> int:
        stats = self._stats(device)
        return int(stats.get("num_ooms", 0)) if stats else 0


BUILTIN: dict[str, type[Cuda]] = {"cuda": Cuda, "xpu": Xpu}


def accelerator() -> Accelerator:
    """The one that OOMDOC_ACCELERATOR names, else the one that torch finds here."""
    named = os.environ.get(VARIABLE)
    if named:
        return _named(named)
    current: Any = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    kind = "cuda" if current is None else str(current.type)
    if kind not in BUILTIN:
        raise OomdocError(
            f"recording on {kind} is not supported: torch keeps a memory history for {' and '.join(BUILTIN)} only. "
            f"--virtual records the same script without a device; a backend of your own is named with {VARIABLE}"
        )
    return BUILTIN[kind]()


def _named(text: str) -> Accelerator:
    module, colon, name = text.partition(":")
    try:
        found: Accelerator = getattr(importlib.import_module(module), name)() if colon else BUILTIN[text]()
    except (ImportError, AttributeError, KeyError) as error:
        raise OomdocError(f"{VARIABLE}={text} names no accelerator ({error}): write package.module:Class") from error
    return found
