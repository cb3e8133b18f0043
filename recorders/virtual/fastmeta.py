"""Shapes at C++ speed: without the Python reference kernels that torch registers for the `meta` device.

torch shadows its own C++ structured meta kernels (under 1 us) by Python reference implementations (65 us for `add`).
For the time of a session they are dropped where C++ has an answer; the others stay, and their answers are remembered
by shape (`Memo`). The C++ kernels are also the ones whose strides CUDA uses. Private: `torch._meta_registrations`.
A self-test compares both on ordinary calls; on any difference or missing name the session keeps torch's own kernels,
which are 4 to 10 times slower and give the same shapes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .private import META_LIBRARY, OpOverload, decompositions, has_kernel_for, meta_registrations, raw_is_meta

# Composite in C++, but the composite calls a kernel that `meta` lacks, or is not what the CUDA kernel returns.
KEEP_PYTHON = (
    "aten::convolution",
    "aten::_convolution",
    "aten::convolution_backward",
    "aten::native_layer_norm",
    "aten::native_group_norm",
    "aten::_grouped_mm",
)
_MAX_REMEMBERED = 20_000  # keys; variable-length input makes many


class Memo:
    """Remembers the outputs of slow meta kernels by operation, shapes, strides, dtypes and plain arguments."""

    def __init__(self, slow: frozenset[str]) -> None:
        self.slow = slow  # operation names
        self._seen: dict[Any, tuple[bool, tuple[Any, ...]]] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func(*args, **kwargs)` returns; all tensors of `args` are on `meta`."""
        try:
            key = (func, _key(args), _key(tuple(kwargs.items())) if kwargs else None)
            known = self._seen.get(key)
        except TypeError:  # an argument that cannot be a key: a generator, a complex tensor
            return func(*args, **kwargs)
        if known is not None:
            single, outputs = known
            made = [_make(each) for each in outputs]
            return made[0] if single else tuple(made)
        result = func(*args, **kwargs)
        described = _describe(result, args)
        if described is not None:
            if len(self._seen) >= _MAX_REMEMBERED:
                self._seen.clear()
            self._seen[key] = (not isinstance(result, tuple), described)
        return result


def _key(values: tuple[Any, ...] | list[Any]) -> tuple[Any, ...]:
    return tuple(
        (value.shape, value.stride(), value.dtype, _on_meta(value))
        if isinstance(value, torch.Tensor)
        else _key(value)
        if isinstance(value, (list, tuple))
        else (type(value), value)
        for value in values
    )


def _on_meta(value: torch.Tensor) -> bool:
    if value.is_complex() or value.layout is not torch.strided:
        raise TypeError("only plain strided tensors are remembered")
    return raw_is_meta(value)


def _describe(result: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """How to make the outputs again, or None where they are not fresh dense meta tensors."""
    described: list[Any] = []
    for each in result if isinstance(result, tuple) else (result,):
        if not isinstance(each, torch.Tensor):
            if each is not None and not isinstance(each, (int, float, bool)):
                return None
            described.append(each)
            continue
        if not raw_is_meta(each) or each.layout is not torch.strided or each.storage_offset():
            return None
        again = torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta")
        if again.untyped_storage().nbytes() != each.untyped_storage().nbytes():
            return None
        if any(each is other for other in args if isinstance(other, torch.Tensor)):
            return None
        described.append((each.shape, each.stride(), each.dtype))
    return tuple(described)


def _make(described: Any) -> Any:
    if not isinstance(described, tuple):
        return described
    size, stride, dtype = described
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


@contextmanager
def fast_meta_kernels() -> Iterator[Memo]:
    """Within, `meta` runs on C++ kernels where torch has them. Yields the memo for the ones it has not."""
    registrations = meta_registrations()
    if registrations is None:  # torch's own kernels, which are slower
        yield Memo(frozenset())
        return
    python_kernels = _python_kernels()
    library: Any = torch.library.Library
    original: Any = getattr(registrations, META_LIBRARY)
    names = {name for name in _registered(original) if name in python_kernels}
    expected = _self_test()
    original._destroy()
    fast = library("aten", "IMPL", "Meta")
    kept = _needing_python(names)
    for name in kept:
        fast.impl(*python_kernels[name])
    try:
        if _self_test() != expected:
            for name in names - kept:
                fast.impl(*python_kernels[name])
            kept = names
        yield Memo(frozenset(kept))
    finally:
        fast._destroy()
        restored = library("aten", "IMPL", "Meta")
        for name in names:
            restored.impl(*python_kernels[name])
        setattr(registrations, META_LIBRARY, restored)


def _python_kernels() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Operation name -> (operation, Python meta kernel), with torch's own precedence."""
    table: dict[str, tuple[Any, Callable[..., Any]]] = {}
    for kind in ("meta", "post_autograd", "pre_autograd"):
        for op, kernel in decompositions()[kind].items():
            name: Any = getattr(op, "name", None)
            if isinstance(op, OpOverload) and op.namespace == "aten":
                table.setdefault(name(), (op, kernel))
    return table


def _registered(library: Any) -> list[str]:
    """Names of the operations that a Library has kernels for: `aten/add.Tensor/Meta` -> `aten::add.Tensor`."""
    return ["::".join(entry.split("/")[:2]) for entry in library._op_impls]


def _needing_python(names: set[str]) -> set[str]:
    """The operations without a usable C++ meta kernel, now that the Python ones are gone.

    A functional form that is composite in C++ runs its own `out` form (abs -> abs.out): where that one is Python, which
    resizes to contiguous strides, the functional form has to be Python too.
    """
    missing = {name for name in names if name in KEEP_PYTHON or not _has_kernel(name, "Meta", *_COMPOSITE)}
    python_out = {name.split(".")[0] for name in missing if name.endswith("out")}
    functional = {
        name for name in names if name.split(".")[0] in python_out and not _has_kernel(name, "Meta", _IMPLICIT)
    }
    return missing | functional


_IMPLICIT = "CompositeImplicitAutograd"
_COMPOSITE = (_IMPLICIT, "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def _has_kernel(name: str, *keys: str) -> bool:
    return any(has_kernel_for(name, key) for key in keys)


def _self_test() -> list[Any]:
    """Shapes, strides and dtypes of ordinary calls on `meta`."""
    return [_shapes(case) for case in _cases()]


def _shapes(case: tuple[Any, ...]) -> Any:
    op, *args = case
    result = op(*args)
    outputs = result if isinstance(result, (tuple, list)) else [result]
    return [
        (tuple(each.shape), each.stride(), each.dtype) if isinstance(each, torch.Tensor) else each for each in outputs
    ]


def _cases() -> list[tuple[Any, ...]]:
    aten = torch.ops.aten

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    dense, half, index = new(4, 6, 8), new(4, 6, 8, dtype=torch.bfloat16), new(4, 6, dtype=torch.int64)
    turned, channels_last = dense.transpose(0, 2), new(2, 3, 5, 7).to(memory_format=torch.channels_last)
    matrix, row, mask = new(8, 5), new(8), new(4, 6, 8, dtype=torch.bool)
    unary = [aten.exp, aten.rsqrt, aten.gelu, aten.silu, aten.relu, aten.tanh, aten.sigmoid, aten.neg, aten.abs]
    binary = [aten.add, aten.sub, aten.mul, aten.div, aten.maximum, aten.pow, aten.eq, aten.lt]
    return [
        *((op, x) for op in unary for x in (dense, half, turned, channels_last)),
        *((op, x, y) for op in binary for x, y in ((dense, dense), (dense, row), (half, dense), (turned, turned))),
        *((op, dense, 2.0) for op in (aten.add, aten.mul, aten.pow, aten.gt)),
        *((op, x, [-1], True) for op in (aten.sum, aten.mean, aten.amax) for x in (dense, half, turned)),
        *((op, x, -1, False) for op in (aten._softmax, aten._log_softmax) for x in (dense, half)),
        (aten.where, mask, dense, half),
        (aten.where, mask, turned.transpose(0, 2), row),
        (aten.mm, new(3, 8), matrix),
        (aten.bmm, dense, new(4, 8, 5)),
        (aten.addmm, new(5), new(3, 8), matrix),
        (aten.cat, [dense, dense], 1),
        (aten.stack, [dense, dense], 1),
        (aten.embedding, matrix, index),
        (aten.index, matrix, [new(3, dtype=torch.int64)]),
        (aten.gather, dense, 0, index.unsqueeze(-1)),
        (aten.cumsum, dense, 1),
        (aten.topk, dense, 2),
        (aten.sort, dense),
        (aten.max, dense, 1),
        (aten.masked_fill, dense, mask, 0.0),
        (aten.clone, turned),
        (aten.native_layer_norm, dense, [8], row, row, 1e-5),
        (aten.native_layer_norm, half, [8], None, None, 1e-5),
        (aten.tril, new(8, 8)),
        (aten.nll_loss_forward, matrix, new(8, dtype=torch.int64), None, 1, -100),
        (aten.convolution, channels_last, new(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ]
