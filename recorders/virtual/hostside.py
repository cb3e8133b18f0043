"""The host's side of a virtual tensor: pinned memory, numpy, Python numbers, streams that use it.

Pinned tensors are ordinary host tensors that say they are pinned: page locking is not the GPU's memory.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import has_torch_function_unary

from .host import real_zeros
from .patching import patches
from .private import TENSOR_BASE, raw_is_meta, raw_storage
from .storages import RECORDS, Kind, device_of, inside, kind_of

if TYPE_CHECKING:
    from .session import Session

_BASE: Any = TENSOR_BASE
_raw_numpy: Callable[..., Any] = _BASE.numpy
_raw_tolist: Callable[[torch.Tensor], Any] = _BASE.tolist

_pinned: dict[int, weakref.ref[torch.UntypedStorage]] = {}


def mark_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """From now on the host tensor says that it is pinned. Returns it."""
    storage = raw_storage(tensor)
    key = storage._cdata
    _pinned[key] = weakref.ref(storage, lambda _: _pinned.pop(key, None))
    return tensor


def pinned_storages() -> list[torch.UntypedStorage]:
    """All that are pinned now."""
    return [storage for reference in list(_pinned.values()) if (storage := reference()) is not None]


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    where = device_of(self)
    if where.type != "cpu":
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    if _is_pinned(self):
        return self
    return mark_pinned(self.detach().clone(memory_format=torch.preserve_format))


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return raw_storage(self)._cdata in _pinned


def _real_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor with values, whatever the value policy makes of `tensor`."""
    copy = tensor.detach().cpu()
    return real_zeros(copy.shape, copy.dtype) if raw_is_meta(copy) else copy


def _numpy(self: torch.Tensor, *, force: bool = False) -> Any:
    if not raw_is_meta(self) or has_torch_function_unary(self):
        return _raw_numpy(self, force=force)
    where = device_of(self)
    if where.type != "cpu" and not (force and where.type == "cuda"):
        raise TypeError(
            f"can't convert {where} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    if self.requires_grad and not force:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    return _raw_numpy(_real_copy(self))


def _tolist(self: torch.Tensor) -> Any:
    if not raw_is_meta(self) or inside.depth or kind_of(self) is Kind.META:
        return _raw_tolist(self)
    return self.item() if self.dim() == 0 else _raw_tolist(_real_copy(self))


def _record_stream(session: "Session") -> Callable[[torch.Tensor, Any], None]:
    from .streams import handle_of

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        """The allocator gives the block back only after that stream's work; see allocator.machine."""
        if not raw_is_meta(self):
            return
        record = RECORDS.get(raw_storage(self)._cdata)
        if record is not None and record.kind is Kind.CUDA and record.address:
            handle = handle_of(stream.stream_id, stream.device_index)
            session.device.allocators[record.index].record_stream(record.address, handle)

    return record_stream


@contextmanager
def install(session: "Session") -> Iterator[None]:
    with patches() as held:
        held.set_all(
            torch.Tensor,
            {
                "pin_memory": _pin_memory,
                "is_pinned": _is_pinned,
                "numpy": _numpy,
                "tolist": _tolist,
                "record_stream": _record_stream(session),
            },
        )
        try:
            yield
        finally:
            _pinned.clear()
