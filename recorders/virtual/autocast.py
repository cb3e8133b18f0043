"""`torch.autocast("cuda")` for virtual tensors: torch's own state and context managers, its casts done here.

CPU builds of torch contain the AutocastCUDA kernels, but these ask `tensor.is_cuda()`, which is false for `meta`. So
each of them is replaced, for the time of a session, by a Python kernel with the same policy; the key is made active on
every thread, and torch's own exclusion set keeps it silent while autocast is off. Policies and the weight cache follow
aten/src/ATen/autocast_mode.{h,cpp}; `unknown` tells of operations that a newer torch casts and `autocast_ops` lacks.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ...diagnosers.interface import CATEGORIES, Category
from . import autocast_ops as ops
from .private import (
    AUTOCAST_CUDA,
    RawKernel,
    has_kernel_for,
    operator_names,
    register_kernels,
    set_key_included,
    without_key,
)
from .storages import is_virtual

if TYPE_CHECKING:
    from .session import Session

KEY = AUTOCAST_CUDA


class Casts:
    """The casts themselves, and the cache of weights cast to the lower precision."""

    def __init__(self, kept: Callable[[torch.Tensor], None] = lambda tensor: None) -> None:
        self._kept = kept  # told of each copy that the cache keeps
        self._cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def clear(self) -> None:
        self._cache.clear()

    def cast(self, value: Any, to: torch.dtype) -> Any:
        """`cached_cast`: eligible tensors, also in lists, become `to`; fp32 leaves that require grad are remembered."""
        if isinstance(value, torch.Tensor):
            if not eligible(value) or value.dtype is to:
                return value
            if not self._cacheable(value, to):
                return torch.ops.aten._to_copy.default(value, dtype=to)
            held = self._cache.get(id(value))
            if held is not None and held[0]() is value:
                return held[1]
            cast: torch.Tensor = torch.ops.aten._to_copy.default(value, dtype=to)
            self._cache[id(value)] = (weakref.ref(value), cast)
            self._kept(cast)
            return cast
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return [self.cast(each, to) for each in value]
        return value

    def _cacheable(self, value: torch.Tensor, to: torch.dtype) -> bool:
        return (
            value.dtype is torch.float32
            and to is lower_precision()
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )


def lower_precision() -> torch.dtype:
    return torch.get_autocast_dtype("cuda")


def eligible(tensor: torch.Tensor) -> bool:
    """On the virtual GPU, floating point and not double."""
    return tensor.is_floating_point() and tensor.dtype is not torch.float64 and is_virtual(tensor)


def widest(args: tuple[Any, ...]) -> torch.dtype:
    """float32 as soon as one eligible operand is, else the lower precision."""
    for value in args:
        tensors = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(t, torch.Tensor) and eligible(t) and t.dtype is torch.float32 for t in tensors):
            return torch.float32
    return lower_precision()


def kernels(casts: Casts) -> dict[str, RawKernel]:
    """One kernel per operation of this torch that AutocastCUDA covers."""
    made: dict[str, RawKernel] = {}
    made |= {n: _casting(casts, lambda _: lower_precision(), overload(n)) for n in known(ops.LOWER_PRECISION)}
    made |= {n: _casting(casts, lambda _: torch.float32, overload(n)) for n in known(ops.FLOAT32)}
    made |= {n: _casting(casts, widest, overload(n)) for n in known(ops.WIDEST)}
    made |= {n: _float_result(overload(n)) for n in known(ops.FLOAT32_RESULT)}
    for name in known(" ".join(ops.FLOAT32_APPENDED)):
        made[name] = _float_appended(overload(name), overload(ops.FLOAT32_APPENDED[name]))
    made |= {n: _banned(overload(n)) for n in known(ops.BANNED)}
    return made


def _casting(casts: Casts, to: Callable[[tuple[Any, ...]], torch.dtype], op: Any) -> RawKernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_key(KEY):
            dtype = to(args)
            if kwargs:
                kwargs = {name: casts.cast(value, dtype) for name, value in kwargs.items()}
            return op(*[casts.cast(a, dtype) for a in args], **kwargs)

    return kernel


def _float_result(op: Any) -> RawKernel:
    place = [argument.name for argument in op._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_key(KEY):
            given = kwargs.get("dtype") if len(args) <= place else args[place]
            if given is None and eligible(args[0]):
                if len(args) > place:
                    args = (*args[:place], torch.float32, *args[place + 1 :])
                else:
                    kwargs = {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)

    return kernel


def _float_appended(op: Any, wide: Any) -> RawKernel:
    names = [argument.name for argument in op._schema.arguments]
    defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        dtype = torch.float32 if eligible(args[0]) else args[0].dtype
        with without_key(KEY):
            return wide(*(values[name] for name in names), dtype=dtype)

    return kernel


def _banned(op: Any) -> RawKernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if is_virtual(args[0]):
            raise RuntimeError(ops.BANNED_MESSAGE)
        with without_key(KEY):
            return op(*args, **kwargs)

    return kernel


def known(names: str) -> list[str]:
    """Those of `names` that this torch has and casts."""
    there = set(operator_names())
    return [name for name in names.split() if f"aten::{name}" in there and has_kernel_for(f"aten::{name}", KEY)]


def unknown() -> list[str]:
    """Operations that this torch casts and `autocast_ops` lacks: their results would keep the wrong dtype."""
    lists = (ops.LOWER_PRECISION, ops.FLOAT32, ops.FLOAT32_RESULT, " ".join(ops.FLOAT32_APPENDED), ops.WIDEST)
    listed = {f"aten::{name}" for names in (*lists, ops.BANNED, ops.ELSEWHERE) for name in names.split()}
    return sorted(
        name
        for name in operator_names()
        if name.startswith("aten::") and name not in listed and has_kernel_for(name, KEY)
    )


def overload(name: str) -> Any:
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


@contextmanager
def active_on_this_thread() -> Iterator[None]:
    """The kernels above run on this thread while autocast is on."""
    set_key_included(KEY, True)
    try:
        yield
    finally:
        set_key_included(KEY, False)


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """Replace torch's AutocastCUDA kernels; on exit torch's own are back."""
    casts = Casts(lambda tensor: session.roles.mark(tensor, CATEGORIES.index(Category.AUTOCAST_CACHE.value)))
    for name in unknown():
        session.note(
            f"autocast: this torch casts {name}, which oomdoc does not know: its result may have a wrong dtype"
        )
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        casts.clear()
        clear()

    session.thread_contexts.append(active_on_this_thread)
    torch.clear_autocast_cache = clear_both
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "Overriding a previously registered kernel": that is the purpose
        held = register_kernels("AutocastCUDA", kernels(casts))
    try:
        with active_on_this_thread():
            yield
    finally:
        held()
        casts.clear()
        torch.clear_autocast_cache = clear
        session.thread_contexts.remove(active_on_this_thread)
