"""Values of virtual tensors that can be known: a CPU storage beside the record of a virtual one.

An operation whose operands all have a shadow is run on the shadows too. How far a shadow can be trusted is its level,
the worst of its operands': `KNOWN` came from the host, `SPREAD` are indices that stand for unknown ones and are spread
evenly over their range (spread.py), `POLICY` is what the host would hear if it read an unknown value. Sizes follow the
first two; a size that rests on a policy is taken at its largest.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .private import raw_is_meta, raw_storage
from .promises import Part, Promise, Unknown, follows, kept, made
from .scratch import Args, Kwargs
from .storages import RECORDS, Kind, StorageRecord

LIMIT = 4096  # elements of a tensor that keeps its values
LIMIT_BYTES = 8 * LIMIT
SPREAD_LIMIT_BYTES = 64 << 20  # of integers that follow from spread indices: a mask of 64k choices among 128 experts
KNOWN, SPREAD, POLICY = 0, 1, 2
_aten = torch.ops.aten

# what hands a policy on: it decides what is kept, not what is counted
_CARRIES_POLICY = frozenset(
    (
        _aten.where.self,
        _aten.masked_fill.Scalar,
        _aten.masked_fill.Tensor,
        _aten.masked_fill_.Scalar,
        _aten.masked_fill_.Tensor,
        _aten.index_put_.default,
        _aten._index_put_impl_.default,
        _aten._to_copy.default,
        _aten.clone.default,
        _aten.copy_.default,
        _aten.cat.default,
        _aten.stack.default,
    )
)
ALL_OF = frozenset((_aten.all.default, _aten.all.dim, _aten.all.dims, _aten._is_all_true.default))


def shadow(tensor: torch.Tensor) -> torch.Tensor | None:
    """The CPU tensor that shares shape and strides with `tensor` and holds its values, None when they are unknown."""
    record = RECORDS.get(raw_storage(tensor)._cdata) if tensor.layout is torch.strided else None
    storage = None if record is None else _storage(record)
    return None if storage is None else over(storage, tensor)


def _storage(record: StorageRecord) -> torch.UntypedStorage | None:
    """The values of a whole storage; only what `own` has been called for may be written to."""
    values = record.values
    if values is None:
        if record.constant is None or record.nbytes > SPREAD_LIMIT_BYTES:
            return None
        value, dtype = record.constant
        values = record.values = torch.full((record.nbytes // dtype.itemsize,), value, dtype=dtype).untyped_storage()
        record.constant = None
    storage = values.storage() if isinstance(values, Promise) else values
    if storage is None or storage.nbytes() != record.nbytes:
        record.values = None  # resized
        return None
    return storage


def own(tensor: torch.Tensor) -> None:
    """Before the shadow of `tensor` is written to: what promises follow from stays as it is."""
    record = RECORDS.get(raw_storage(tensor)._cdata) if raw_is_meta(tensor) else None
    if record is not None and isinstance(record.values, Promise):
        storage = _storage(record)
        record.values = None if storage is None else storage.clone()  # type: ignore[no-untyped-call]


def counted(tensor: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """The values that a size may follow from, and whether they are only spread; None where the largest has to do."""
    known = shadow(tensor)
    if known is None:
        return None, False
    level = RECORDS[raw_storage(tensor)._cdata].assumed
    return (None, False) if level >= POLICY else (known, level == SPREAD)


def over(storage: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    empty: Any = torch.empty(0, dtype=tensor.dtype)
    laid_out: torch.Tensor = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return laid_out


def compute(func: Any, args: Args, kwargs: Kwargs, result: Any = None) -> tuple[Any, int] | None:
    """The operation on the shadows, and the level of what comes out; None when the CPU cannot know or do it."""
    levels = [KNOWN]
    try:
        shadows = [_shadowed(a, levels) for a in args]
        keywords = {name: _shadowed(value, levels) for name, value in kwargs.items() if name != "pin_memory"}
    except Unknown:
        return None
    level = max(levels)
    if level >= SPREAD:
        try:
            shadows, keywords = made(shadows), {name: made(value) for name, value in keywords.items()}
        except Unknown:
            return None
    if level == POLICY:
        if func in ALL_OF:
            return None  # of what nobody knows, `all` is True: a loop ends (values.py)
        if func not in _CARRIES_POLICY and not (isinstance(result, torch.Tensor) and result.dtype is torch.bool):
            return None
    if "device" in keywords:
        keywords["device"] = torch.device("cpu")
    try:
        return func(*shadows, **keywords), level
    except (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError):
        return None


def _shadowed(value: Any, levels: list[int]) -> Any:
    if isinstance(value, torch.Tensor):
        if not raw_is_meta(value):
            if value.numel() > LIMIT:
                raise Unknown
            return value
        record = RECORDS.get(raw_storage(value)._cdata) if value.layout is torch.strided else None
        if record is not None and isinstance(record.values, Promise) and not record.values.made:
            levels.append(SPREAD)
            return Part(record.values, value)  # not computed before all operands are known
        known = shadow(value)
        if known is None or record is None:
            raise Unknown
        levels.append(record.assumed)
        return known
    if isinstance(value, (list, tuple)):
        return [_shadowed(each, levels) for each in value]
    return value


def promise(func: Any, args: Args, kwargs: Kwargs, result: torch.Tensor, written: list[torch.Tensor]) -> bool:
    """Keep what a big result follows from, where that is spread indices; False where it is unknown, or not big."""
    place = next((i for i, each in enumerate(args) if written and each is written[0]), None)
    if len(written) > 1 or (written and place is None):
        return False
    record = RECORDS.get(raw_storage(result)._cdata)
    if record is None or record.kind is not Kind.CUDA or not LIMIT_BYTES < record.nbytes <= SPREAD_LIMIT_BYTES:
        return False
    if result.is_floating_point() or (not written and not covers(result, record)):
        return False
    levels = [KNOWN]
    try:
        operands = [_promised(each, levels) for each in args]
        named = {name: _promised(value, levels) for name, value in kwargs.items() if name != "pin_memory"}
    except Unknown:
        return False
    if max(levels) != SPREAD:
        return False
    if "device" in named:
        named["device"] = torch.device("cpu")
    base = None if place is None else operands[place]
    record.values = follows(func, operands, named, result, record.nbytes, base)
    record.constant, record.assumed = None, SPREAD
    return True


def _promised(value: Any, levels: list[int]) -> Any:
    """An operand as it is now, whatever becomes of its tensor."""
    if isinstance(value, torch.Tensor):
        if not raw_is_meta(value):
            if value.numel() > LIMIT:
                raise Unknown
            return value.clone()
        record = RECORDS.get(raw_storage(value)._cdata)
        if record is None or value.layout is not torch.strided:
            raise Unknown
        if not isinstance(record.values, Promise):
            storage = _storage(record)
            if storage is None:
                raise Unknown
            record.values = kept(storage)
        if record.values.nbytes != record.nbytes:
            raise Unknown  # resized
        levels.append(record.assumed)
        return Part(record.values, value)
    if isinstance(value, (list, tuple)):
        return [_promised(each, levels) for each in value]
    return value


def keep(result: Any, known: Any, level: int) -> None:
    """Give the outputs their shadows."""
    if isinstance(result, torch.Tensor) and isinstance(known, Promise):
        record = RECORDS.get(raw_storage(result)._cdata)
        if record is not None and record.kind is Kind.CUDA and record.nbytes == known.nbytes:
            record.values, record.constant, record.assumed = known, None, level
    elif isinstance(result, torch.Tensor):
        if not (isinstance(known, torch.Tensor) and raw_is_meta(result) and known.shape == result.shape):
            return
        record = RECORDS.get(raw_storage(result)._cdata)
        limit = SPREAD_LIMIT_BYTES if level == SPREAD and not result.is_floating_point() else LIMIT_BYTES
        if record is None or record.kind is not Kind.CUDA or not 0 < record.nbytes <= limit:
            return
        if covers(result, record) and (record.values is None or isinstance(record.values, Promise)):
            record.values = torch.UntypedStorage(record.nbytes)  # type: ignore[no-untyped-call]
        own(result)
        if record.values is None:
            return
        record.assumed = level
        record.constant = None
        over(record.values, result).copy_(known)  # type: ignore[arg-type]  # `own` leaves no promise
    elif isinstance(result, (list, tuple)) and isinstance(known, (list, tuple)):
        for each, value in zip(result, known, strict=False):
            keep(each, value, level)


def covers(tensor: torch.Tensor, record: StorageRecord) -> bool:
    return tensor.numel() * tensor.element_size() == record.nbytes


def drop(tensor: torch.Tensor) -> None:
    record = RECORDS.get(raw_storage(tensor)._cdata) if raw_is_meta(tensor) else None
    if record is not None:
        record.values = record.constant = None


def tell(output: torch.Tensor, held: Sequence[torch.Tensor], result: Callable[..., torch.Tensor | None]) -> None:
    """What `result` makes of the values of `held` (virtual or real) is what `output` holds from now on, if known."""
    levels = [KNOWN]
    try:
        value = result(*made([_shadowed(each, levels) for each in held]))
    except Unknown:
        value = None
    if value is None:
        drop(output)
        return
    value = value.clone()  # it may be a view of what `keep` overwrites
    drop(output)
    keep(output, value.to(output.dtype), max(levels))


def tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


def known_numbers(tensor: torch.Tensor) -> list[Any] | None:
    """The values of a tensor, on the host or in a shadow, as a flat list; None where nobody computed them."""
    known = shadow(tensor) if raw_is_meta(tensor) else tensor
    return None if known is None else known.reshape(-1).tolist()


def tell_numbers(tensor: torch.Tensor, numbers: list[Any] | None) -> None:
    """What another rank knows of its tensor is what this one holds from now on."""
    value = None if numbers is None else torch.tensor(numbers, dtype=tensor.dtype).view(tensor.shape)
    if raw_is_meta(tensor):
        tell(tensor, (), lambda: value)
    elif value is not None:
        tensor.copy_(value)
