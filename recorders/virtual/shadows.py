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


class Unknown(Exception):  # noqa: N818  # a signal, not an error
    """An operand has no shadow."""


def shadow(tensor: torch.Tensor) -> torch.Tensor | None:
    """The CPU tensor that shares shape and strides with `tensor` and holds its values, None when they are unknown."""
    record = RECORDS.get(raw_storage(tensor)._cdata) if tensor.layout is torch.strided else None
    if record is None:
        return None
    if record.values is None:
        if record.constant is None or record.nbytes > SPREAD_LIMIT_BYTES:
            return None
        value, dtype = record.constant
        record.values = torch.full((record.nbytes // dtype.itemsize,), value, dtype=dtype).untyped_storage()
        record.constant = None
    if record.values.nbytes() != record.nbytes:
        record.values = None  # resized
        return None
    return over(record.values, tensor)


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
        known = shadow(value)
        if known is None:
            raise Unknown
        levels.append(RECORDS[raw_storage(value)._cdata].assumed)
        return known
    if isinstance(value, (list, tuple)):
        return [_shadowed(each, levels) for each in value]
    return value


def keep(result: Any, known: Any, level: int) -> None:
    """Give the outputs their shadows."""
    if isinstance(result, torch.Tensor):
        if not (isinstance(known, torch.Tensor) and raw_is_meta(result) and known.shape == result.shape):
            return
        record = RECORDS.get(raw_storage(result)._cdata)
        limit = SPREAD_LIMIT_BYTES if level == SPREAD and not result.is_floating_point() else LIMIT_BYTES
        if record is None or record.kind is not Kind.CUDA or not 0 < record.nbytes <= limit:
            return
        if record.values is None:
            if not covers(result, record):
                return
            record.values = torch.UntypedStorage(record.nbytes)  # type: ignore[no-untyped-call]
        record.assumed = level
        record.constant = None
        over(record.values, result).copy_(known)
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
        value = result(*[_shadowed(each, levels) for each in held])
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
