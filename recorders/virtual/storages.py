"""Which tensor is on the virtual GPU: one record per meta storage, found by the storage's address.

Everything virtual is a `meta` tensor; the record tells the three kinds apart. A record lives exactly as long as its
C++ storage (a weak reference to the preserved Python storage object fires when the last tensor on it dies).

`inside` is on while the tracker works on this thread: torch's own meta kernels and decompositions then ask a tensor
for its device and must hear `meta`.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from ..wrappers import wrapped_by
from .private import functorch_inner, is_functorch_wrapper, raw_device, raw_is_meta, raw_storage

if TYPE_CHECKING:
    from .fusion import Deferred
    from .promises import Promise


class Kind(IntEnum):
    CUDA = 0  # on the virtual GPU
    META = 1  # the user's own device="meta": deferred initialisation
    HOST = 2  # a big host tensor whose values are not computed


class StorageRecord(weakref.ref[torch.UntypedStorage]):
    """What is known of one storage; also the weak reference that fires when the storage dies.

    One object and no cycle: Python's garbage collector must run as often as it would without us, because it is what
    frees tensors in cycles.
    """

    __slots__ = (
        "address",
        "assumed",
        "born",
        "constant",
        "deferred",
        "event",
        "index",
        "key",
        "kind",
        "nbytes",
        "values",
    )
    kind: Kind
    index: int  # of the device, for Kind.CUDA
    key: int  # StorageImpl address
    nbytes: int  # as last seen
    address: int  # 0 = the allocator holds nothing for it
    event: int  # index of its alloc event in the device's log, -1 = none
    born: int  # how many storages had been allocated when it was
    values: "torch.UntypedStorage | Promise | None"  # what it holds, where that is known (values.py)
    assumed: int  # ... and how surely: a level of shadows.py
    constant: tuple[int | float | bool, torch.dtype] | None  # what all its elements are, where it has no `values`
    deferred: "Deferred | None"  # compiled code has not put it into memory (fusion.py)


class Inside(threading.local):
    """Depth of the tracker on this thread; 0 = the user's code is running."""

    depth = 0
    true_meta = 0  # > 0 while a call by the user that names device="meta" runs (see asking_for_meta)


inside = Inside()
RECORDS: dict[int, StorageRecord] = {}
CPU = torch.device("cpu")
META = torch.device("meta")
_CUDA = tuple(torch.device("cuda", index) for index in range(64))


class _State:
    exotic = 0  # records that are not CUDA: while 0, every meta tensor is virtual
    release: Callable[[StorageRecord], None] | None = None


state = _State()


@contextmanager
def looking_inside() -> Iterator[None]:
    """Within, `tensor.device` of a virtual tensor says `meta` (this thread only)."""
    inside.depth += 1
    try:
        yield
    finally:
        inside.depth -= 1


@contextmanager
def asking_for_meta() -> Iterator[None]:
    """Within, factories with device meta are the user's own deferred tensors and not virtual ones.

    C++ composites and derivative formulas make factories with the device of their operands, `meta`, for virtual
    tensors as well; only a call made from Python can mean the true one.
    """
    inside.true_meta += 1
    try:
        yield
    finally:
        inside.true_meta -= 1


def _died(record: "StorageRecord") -> None:
    record.deferred = None  # whoever still lists the record must not keep what it was to be computed from
    if RECORDS.get(record.key) is not record:
        return
    del RECORDS[record.key]
    if record.kind is not Kind.CUDA:
        state.exotic -= 1
    elif record.address and state.release is not None:
        state.release(record)


def tag_storage(storage: torch.UntypedStorage, kind: Kind, index: int = 0) -> StorageRecord:
    """Start (or replace) the record of a meta storage. Allocates nothing: see `VirtualDevice.adopt`."""
    key = storage._cdata
    old = RECORDS.get(key)
    if old is not None:
        forget(old)
    record = StorageRecord(storage, _died)
    record.kind = kind
    record.index = index
    record.key = key
    record.nbytes = storage.nbytes()
    record.address = 0
    record.event = -1
    record.born = 0
    record.values = None
    record.assumed = 0
    record.constant = None
    record.deferred = None
    RECORDS[key] = record
    if kind is not Kind.CUDA:
        state.exotic += 1
    return record


def forget(record: StorageRecord) -> None:
    """Drop a record whose storage lives on. Frees nothing."""
    if RECORDS.get(record.key) is record:
        del RECORDS[record.key]
        if record.kind is not Kind.CUDA:
            state.exotic -= 1


def forget_all() -> None:
    RECORDS.clear()
    state.exotic = 0
    state.release = None


def storage_key(tensor: torch.Tensor) -> int:
    """Address of the tensor's storage; through the wrappers of torch.func; 0 for one without (sparse)."""
    try:
        key: int = raw_storage(tensor)._cdata
        return key
    except NotImplementedError:
        if is_functorch_wrapper(tensor):
            return storage_key(functorch_inner(tensor))
        return 0


def kind_of(tensor: torch.Tensor) -> Kind | None:
    """None = a real tensor. A meta storage that nobody has tagged counts as virtual CUDA."""
    if not raw_is_meta(tensor):
        return None
    if not state.exotic:
        return Kind.CUDA
    record = RECORDS.get(storage_key(tensor))
    return Kind.CUDA if record is None else record.kind


def is_virtual(tensor: torch.Tensor) -> bool:
    """True when the tensor is on the virtual GPU."""
    return kind_of(tensor) is Kind.CUDA


def index_of(tensor: torch.Tensor) -> int:
    """Index of the virtual GPU that a virtual tensor is on."""
    record = RECORDS.get(storage_key(tensor))
    return 0 if record is None else record.index


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device as the user's script must see it: `cuda:N` for virtual tensors, whatever `inside` says."""
    if not raw_is_meta(tensor):
        return raw_device(tensor)
    record = RECORDS.get(storage_key(tensor))
    if record is None:
        inner = wrapped_by(tensor)  # a wrapper has no memory of its own
        return device_of(inner[0]) if inner else _CUDA[0]
    if record.kind is Kind.CUDA:
        return _CUDA[record.index]
    return CPU if record.kind is Kind.HOST else META
