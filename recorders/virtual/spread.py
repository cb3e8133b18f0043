"""Indices that nobody computed, where there are many of few: they are taken to be spread evenly over their range.

A router's choice of experts (`argmax`, `topk`, `multinomial` over the experts) decides how many tokens each of them
gets. Taken one by one such indices are unknown, but there are as many tokens as the batch has: so index i counts as
i modulo the number of bins, and `one_hot(...).sum(0)`, `unique(return_counts=True)`, `bincount`, `idx == e` and what
follows from them agree with each other and add up. Where there are fewer indices than bins (the next token of a
vocabulary) any choice would be arbitrary, and they stay unknown.
"""

from typing import Any

import torch

from .promises import Promise
from .scratch import Args, Arguments, Kwargs
from .shadows import LIMIT_BYTES

_aten = torch.ops.aten


def _along(func: Any, args: Args, kwargs: Kwargs, default: int = -1) -> int:
    """The size of the dimension that is chosen from."""
    arguments = Arguments(func, args, kwargs)
    x, dim = arguments.get("self"), arguments.get("dim", default)
    if dim is None:
        return int(x.numel())
    return int(x.shape[dim]) if x.dim() else 1


def _spread(like: torch.Tensor, bins: int, low: int = 0) -> torch.Tensor | Promise | None:
    count, dtype = like.numel(), like.dtype
    if bins < 2 or count < bins:
        return None

    def make() -> torch.Tensor:
        return (torch.arange(count) % bins + low).to(dtype)

    nbytes = count * dtype.itemsize
    return make().view(like.shape) if nbytes <= LIMIT_BYTES else Promise(nbytes, lambda: make().untyped_storage())


def _chosen(func: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    return _spread(result, _along(func, args, kwargs))


def _first(func: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """argmax and argmin: without a dimension they choose one element of all."""
    return _spread(result, _along(func, args, kwargs, default=None))  # type: ignore[arg-type]


def _with_values(func: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    return None, _spread(result[1], _along(func, args, kwargs))


def _integers(func: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    arguments = Arguments(func, args, kwargs)
    low, high = int(arguments.get("low", 0)), int(arguments.get("high"))
    return None if result.is_floating_point() else _spread(result, high - low, low)


SOURCES = {
    _aten.argmax.default: _first,
    _aten.argmin.default: _first,
    _aten.topk.default: _with_values,
    _aten.max.dim: _with_values,
    _aten.min.dim: _with_values,
    _aten.multinomial.default: _chosen,
    _aten.randint.default: _integers,
    _aten.randint.low: _integers,
    _aten.randint_like.default: _integers,
    _aten.randint_like.low_dtype: _integers,
}


def spread(func: Any, args: Args, kwargs: Kwargs, result: Any) -> Any:
    """Indices, shaped as `result` (None at places that are none), or None where nothing can be said."""
    source = SOURCES.get(func)
    return None if source is None else source(func, args, kwargs, result)
