"""`torch.UntypedStorage` of a virtual tensor: on `cuda:N`, with the simulated address, resizable, copyable.

FSDP frees and reallocates by `storage.resize_`, a plain C++ method that no dispatch mode sees; `torch.load` moves
storages, `copy.deepcopy` clones them. Each becomes an allocation of the same size as on a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .face import canonical_device, pointer_of
from .patching import patches
from .private import STORAGE_BASE, raw_storage
from .storages import CPU, META, RECORDS, Kind, inside, tag_storage

if TYPE_CHECKING:
    from .session import Session

_BASE: Any = STORAGE_BASE
_raw_device: Callable[[torch.UntypedStorage], torch.device] = _BASE.device.__get__
_make: Any = torch.UntypedStorage
_raw_resize: Callable[[torch.UntypedStorage, int], object] = _BASE.resize_
_raw_copy: Callable[..., torch.UntypedStorage] = _BASE.copy_
_raw_data_ptr: Callable[[torch.UntypedStorage], int] = _BASE.data_ptr


def _meta_bytes(nbytes: int, kind: Kind) -> torch.UntypedStorage:
    storage: torch.UntypedStorage = _make(nbytes, device="meta")
    tag_storage(storage, kind)
    return storage


def is_valueless(storage: torch.UntypedStorage) -> bool:
    """True for a meta storage: virtual, host without values, or the user's own meta."""
    return _raw_device(storage).type == "meta"


def storage_device(storage: torch.UntypedStorage) -> torch.device:
    """The device that the script must see."""
    raw = _raw_device(storage)
    if raw.type != "meta" or inside.depth:
        return raw
    record = RECORDS.get(storage._cdata)
    if record is None or record.kind is Kind.CUDA:
        return torch.device("cuda", 0 if record is None else record.index)
    return CPU if record.kind is Kind.HOST else META


def _bytes_on(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    return raw_storage(torch.empty(nbytes, dtype=torch.uint8, device=device))


def _host_bytes(nbytes: int) -> torch.UntypedStorage:
    """A host storage without values."""
    return _meta_bytes(nbytes, Kind.HOST)


def _to(self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
    target = canonical_device(device)
    if target == storage_device(self):
        return self
    if target.type == "cpu":
        return _host_bytes(self.nbytes())
    if target.type == "meta":
        return _meta_bytes(self.nbytes(), Kind.META)
    return _bytes_on(self.nbytes(), target)


def _cuda(self: torch.UntypedStorage, device: Any = None, non_blocking: bool = False) -> torch.UntypedStorage:
    return _to(self, device="cuda" if device is None else device)


def _cpu(self: torch.UntypedStorage) -> torch.UntypedStorage:
    return _host_bytes(self.nbytes()) if storage_device(self).type != "cpu" else self


def _clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
    if not is_valueless(self):
        clone: torch.UntypedStorage = _make(self.nbytes(), device=_raw_device(self))
        return clone.copy_(self)
    device = storage_device(self)
    if device.type == "cuda":
        return _bytes_on(self.nbytes(), device)
    return _meta_bytes(self.nbytes(), Kind.HOST if device.type == "cpu" else Kind.META)


def _copy_(
    self: torch.UntypedStorage, source: torch.UntypedStorage, non_blocking: bool = False
) -> torch.UntypedStorage:
    if is_valueless(self) or is_valueless(source):
        return self
    return _raw_copy(self, source, non_blocking)


def _data_ptr(self: torch.UntypedStorage) -> int:
    return pointer_of(self) if is_valueless(self) else _raw_data_ptr(self)


def _resize(session: "Session") -> Callable[[torch.UntypedStorage, int], torch.UntypedStorage]:
    device = session.device

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        before = self.nbytes()
        _raw_resize(self, size)
        if is_valueless(self) and size != before:
            device.context.stack = device.stacks.capture(2)
            try:
                device.resized(self, size)
            except torch.OutOfMemoryError:
                _raw_resize(self, before)
                raise
        return self

    return resize_


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The overrides on torch.UntypedStorage for the time of the block."""
    with patches() as held:
        held.set_all(
            torch.UntypedStorage,
            {
                "device": property(storage_device),
                "is_cuda": property(lambda self: storage_device(self).type == "cuda"),
                "get_device": lambda self: -1 if storage_device(self).index is None else storage_device(self).index,
                "to": _to,
                "cuda": _cuda,
                "cpu": _cpu,
                "clone": _clone,
                "copy_": _copy_,
                "data_ptr": _data_ptr,
                "resize_": _resize(session),
            },
        )
        yield
