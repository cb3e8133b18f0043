"""Operations whose result's size depends on values: exact where these are known, else the largest size, and said so.

`nonzero`, boolean indexing, `masked_select`, `unique`, `bincount`, `repeat_interleave`: on CUDA each counts on the
device, waits, and allocates what it found. Here a known mask (see `values`) is counted; an unknown one counts as full,
so that the simulated peak is not below the real one. The allocation is marked as an estimate.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .private import raw_storage
from .scratch import Args, Arguments, Kwargs
from .shadows import LIMIT, POLICY, SPREAD, counted, keep, shadow
from .storages import is_virtual
from .unsupported import unsupported, users_line

if TYPE_CHECKING:
    from .session import Session
    from .tracker import Handler, Tracker

_aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)


class Sizes:
    """The handlers of one session."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    def _made(
        self,
        tracker: "Tracker",
        func: Any,
        args: Args,
        kwargs: Kwargs,
        run: Callable[..., Any],
        known: torch.Tensor | None,
        spread: bool,
    ) -> Any:
        """Allocate what `run` makes; marked as an estimate where the values that decide its size are not `known`."""
        if known is not None and not spread:
            return tracker.call(func, args, kwargs, run=run)
        file, line = users_line()
        name = func.name().removeprefix("aten::")
        taken = "indices were taken to be spread evenly" if spread else "the largest possible was taken"
        self._session.note(f"the size of {name} at {file}:{line} depends on values: {taken}")
        result = tracker.call(func, args, kwargs, run=run)
        for each in result if isinstance(result, tuple) else (result,):
            nbytes = raw_storage(each).nbytes()
            self._session.device.mark_estimated(each, (0, 2 * nbytes if spread else nbytes))
        return result

    def nonzero(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        x = args[0]
        if not is_virtual(x):
            return NotImplemented
        known, spread = counted(x)
        count = x.numel() if known is None else int(known.count_nonzero())

        def run(x: torch.Tensor) -> torch.Tensor:  # a transposed (dimensions, count)
            return torch.empty_strided((count, x.dim()), (1, count), dtype=torch.int64, device="meta")

        return self._made(tracker, func, args, kwargs, run, known, spread)

    def masked_select(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Indexing by the mask, after both are expanded (ATen/native/cuda/IndexKernel.cpp)."""
        x, mask = args
        if not is_virtual(x):
            return NotImplemented
        shape = torch.broadcast_shapes(x.shape, mask.shape)  # type: ignore[no-untyped-call]
        indexed = partial(_aten.index.Tensor, x.expand(shape), [mask.expand(shape)])
        return tracker.reentered(indexed, (), {})

    def masked_scatter_backward(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        """The selected gradients, filled up to as many as `sizes` hold."""
        return tracker.reentered(_scattered, args, kwargs) if is_virtual(args[0]) else NotImplemented

    def index(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Masks become index columns first (expandTensors), which live until the result is made."""
        x, indices = args[0], args[1]
        if not is_virtual(x) or not any(i is not None and i.dtype in _MASKS for i in indices):
            return NotImplemented
        expanded = tracker.reentered(_columns, (list(indices),), {})
        return tracker.call(func, (x, expanded), kwargs)

    def index_put(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        """One value under one mask is a masked fill; anything else needs the columns."""
        arguments = Arguments(func, args, kwargs)
        x, indices, values = arguments.get("self"), arguments.get("indices"), arguments.get("values")
        given = [i for i in indices if i is not None]
        if not is_virtual(x) or not any(i.dtype in _MASKS for i in given):
            return NotImplemented
        if values.numel() == 1 and len(given) == 1 and not arguments.get("accumulate", False):
            return tracker.call(func, args, kwargs)
        held = _held_under(x, given)
        expanded = tracker.reentered(_columns, (list(indices),), {})
        values = _as_many(values, x, expanded)
        rest = (arguments.get("accumulate", False), *([arguments.get("unsafe", False)] if len(args) > 4 else []))
        result = tracker.call(func, (x, expanded, values, *rest), {})
        if held is not None:
            keep(result, held, POLICY)
        return result

    def unique(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        """_unique2 and _unique: the values, and where asked the inverse; of the former also the counts."""
        arguments = Arguments(func, args, kwargs)
        x = arguments.get("self")
        if not is_virtual(x):
            return NotImplemented
        known, spread = counted(x)
        count = x.numel() if known is None else int(torch.unique(known).numel())
        result = self._found(tracker, func, args, kwargs, (known, spread), (count,), x.shape)
        if known is None and count <= LIMIT and len(result) > 2 and result[2].numel():  # each is there once
            keep(result[2], torch.ones(count, dtype=torch.int64), SPREAD)
        return result

    def unique_consecutive(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        arguments = Arguments(func, args, kwargs)
        x, dim = arguments.get("self"), arguments.get("dim")
        if not is_virtual(x):
            return NotImplemented
        shape = x.shape if dim is not None else (x.numel(),)
        return self._found(
            tracker, func, args, kwargs, (None, False), shape, x.shape if dim is None else (x.shape[dim],)
        )

    def unique_dim(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        x, dim = args[0], args[1]
        if not is_virtual(x):
            return NotImplemented
        return self._found(tracker, func, args, kwargs, (None, False), x.shape, (x.shape[dim],))

    def _found(
        self,
        tracker: "Tracker",
        func: Any,
        args: Args,
        kwargs: Kwargs,
        known: tuple[torch.Tensor | None, bool],
        shape: tuple[int, ...],
        inverse: tuple[int, ...],
    ) -> Any:
        arguments = Arguments(func, args, kwargs)
        with_inverse, with_counts = arguments.get("return_inverse", False), arguments.get("return_counts", False)

        def run(x: torch.Tensor, *_: Any, **__: Any) -> Any:
            integers = partial(torch.empty, dtype=torch.int64, device="meta")
            made = (
                torch.empty(shape, dtype=x.dtype, device="meta"),
                integers(inverse if with_inverse else 0),
                integers(shape[0] if with_counts else 0),
            )
            return made[: len(func._schema.returns)]

        return self._made(tracker, func, args, kwargs, run, *known)

    def bincount(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        arguments = Arguments(func, args, kwargs)
        x, weights, least = arguments.get("self"), arguments.get("weights"), arguments.get("minlength", 0)
        if not is_virtual(x):
            return NotImplemented
        known, spread = counted(x)
        if known is None and not least:
            raise unsupported("aten::bincount", "its length is the largest value plus one, which nobody computed")
        bins = least if known is None or not known.numel() else max(least, int(known.max()) + 1)
        dtype = torch.int64 if weights is None else torch.promote_types(weights.dtype, torch.float32)

        def run(*_: Any, **__: Any) -> torch.Tensor:
            return torch.empty(bins, dtype=dtype, device="meta")

        return self._made(tracker, func, args, kwargs, run, known, spread)

    def repeat_interleave(self, tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
        """The indices that `repeat_interleave(x, repeats)` selects by; as many as the repeats add up to."""
        arguments = Arguments(func, args, kwargs)
        repeats, total = arguments.get("repeats"), arguments.get("output_size")
        if not is_virtual(repeats):
            return NotImplemented
        known, spread = counted(repeats)
        if total is None and known is None:
            raise unsupported(
                "aten::repeat_interleave",
                "its length is the sum of the repeats, which nobody computed: give output_size",
            )
        length = total if known is None else int(known.sum())

        def run(*_: Any, **__: Any) -> torch.Tensor:
            return torch.empty(length, dtype=repeats.dtype, device="meta")

        return self._made(tracker, func, args, kwargs, run, repeats if total is not None else known, spread)


def _scattered(grad: torch.Tensor, mask: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """As aten/src/ATen/native/TensorAdvancedIndexing.cpp; an assumed mask may select more than there are."""
    selected = grad.masked_select(mask)
    wanted = math.prod(sizes)
    if selected.numel() < wanted:
        selected = torch.cat((selected, selected.new_zeros(wanted - selected.numel())))
    return selected[:wanted].view(sizes)


def _columns(indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Each mask as one index tensor per dimension of it."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            expanded.append(index)
        else:
            found = index.nonzero()
            expanded += [found.select(1, dimension) for dimension in range(index.dim())]
    return expanded


def _held_under(x: torch.Tensor, masks: list[torch.Tensor]) -> torch.Tensor | None:
    """What `x` holds, where the host would hear that the masks select nothing of it."""
    known = shadow(x)
    chosen = [shadow(mask) for mask in masks if mask.dtype in _MASKS]
    if known is None or all(mask is None or bool(mask.any()) for mask in chosen):
        return None
    return known.clone()


def _as_many(values: torch.Tensor, x: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """Values counted for the real mask stand for as many as the assumed one selects: the memory of one, expanded."""
    count = next(i.shape[0] for i in indices if i is not None and i.dim() == 1)
    if values.dim() and values.shape[0] not in (1, count):
        return values[:1].expand(count, *values.shape[1:])
    return values


def handlers(sizes: Sizes) -> "dict[Any, Handler]":
    puts = (_aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default)
    return {
        _aten.nonzero.default: sizes.nonzero,
        _aten.masked_select.default: sizes.masked_select,
        _aten.masked_scatter_backward.default: sizes.masked_scatter_backward,
        _aten.index.Tensor: sizes.index,
        **dict.fromkeys(puts, sizes.index_put),
        _aten._unique.default: sizes.unique,
        _aten._unique2.default: sizes.unique,
        _aten.unique_dim.default: sizes.unique_dim,
        _aten.unique_consecutive.default: sizes.unique_consecutive,
        _aten.bincount.default: sizes.bincount,
        _aten.repeat_interleave.Tensor: sizes.repeat_interleave,
    }


@contextmanager
def install(session: "Session") -> Iterator[None]:
    added = handlers(Sizes(session))
    session.tracker.handlers.update(added)
    try:
        yield
    finally:
        for op in added:
            session.tracker.handlers.pop(op, None)
