"""Copies between host and virtual GPU, and reading values back.

To the GPU: a new virtual tensor, which counts as input until it shows another role. To the host: what `read_back`
answers; a big float tensor stays virtual, on the host. `read_back` is replaced by the value policy (values.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ...diagnosers.interface import CATEGORIES, Category
from .host import is_big
from .private import raw_is_meta
from .storages import META, Kind, kind_of

if TYPE_CHECKING:
    from .session import Session
    from .tracker import Tracker

INPUT = CATEGORIES.index(Category.INPUT.value)
_aten = torch.ops.aten


def zeros_like_host(tensor: torch.Tensor) -> torch.Tensor:
    """A real tensor for a virtual one whose values nobody knows: zeros, of its shape and dtype."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


@contextmanager
def install(session: "Session") -> Iterator[None]:
    tracker = session.tracker

    def to_copy(tracker: "Tracker", func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source, device = args[0], kwargs.get("device")
        kind = kind_of(source)
        if device is None or device.type == "meta":
            return NotImplemented
        if device.type == "cuda":
            if kind in (None, Kind.HOST):
                _note_input(session, source)
                tracker.category = INPUT
            return NotImplemented
        if kind is None:
            return NotImplemented
        if kind is Kind.META:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        if kind is Kind.HOST or is_big(source.numel(), kwargs.get("dtype") or source.dtype):
            result = func(source, **{**kwargs, "device": META, "pin_memory": None})
            tracker.tag(result, Kind.HOST)
            return result
        return func(read_back(tracker, source), **kwargs)

    def copy_(tracker: "Tracker", func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, source = args[0], args[1]
        if not raw_is_meta(target) and raw_is_meta(source):
            _fill(tracker, target, source)
            return target
        return NotImplemented

    def foreach_copy_(tracker: "Tracker", func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        targets, sources = args[0], args[1]
        if not any(not raw_is_meta(t) and raw_is_meta(s) for t, s in zip(targets, sources, strict=True)):
            return NotImplemented
        for target, source in zip(targets, sources, strict=True):
            if not raw_is_meta(target) and raw_is_meta(source):
                _fill(tracker, target, source)
            else:
                target.copy_(source)
        return None

    def item(tracker: "Tracker", func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return read_back(tracker, args[0]).item() if raw_is_meta(args[0]) else NotImplemented

    handlers = {
        _aten._to_copy.default: to_copy,
        _aten.copy_.default: copy_,
        _aten._foreach_copy_.default: foreach_copy_,
        _aten._local_scalar_dense.default: item,
    }
    tracker.handlers.update(handlers)
    tracker.read_back = tracker.read_back or zeros_like_host
    yield
    for op in handlers:
        tracker.handlers.pop(op, None)


def read_back(tracker: "Tracker", tensor: torch.Tensor) -> torch.Tensor:
    """The values of a virtual tensor as the policy has them."""
    return (tracker.read_back or zeros_like_host)(tensor)


def _fill(tracker: "Tracker", target: torch.Tensor, source: torch.Tensor) -> None:
    """A real host tensor receives values of a virtual one; a big float one keeps what it has."""
    if not is_big(source.numel(), source.dtype):
        target.copy_(read_back(tracker, source))


def _note_input(session: "Session", source: torch.Tensor) -> None:
    """Shapes that come from the host again and again are the batch; parameters come once."""
    key = (tuple(source.shape), str(source.dtype).removeprefix("torch."))
    if key in session.inputs or len(session.inputs) < 1000:
        session.inputs[key] = session.inputs.get(key, 0) + 1
