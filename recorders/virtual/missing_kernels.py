"""CUDA operations without a meta kernel that need no file of their own: fused optimizers, batch norms, scans, losses.

`_fused_sgd_`, `_fused_adagrad_`, and the forms with a tensor as learning rate, work in place on lists of tensors and
allocate nothing (aten/src/ATen/native/cuda/FusedSgdKernel.cu and its siblings). The steps of SyncBatchNorm give per
channel statistics in the accumulation type (aten/src/ATen/native/cuda/Normalization.cu). The rest give what their
operands' shapes say; `linspace` and `logspace` between tensors read these on the host.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .patching import patches
from .private import has_kernel_for

if TYPE_CHECKING:
    from .session import Session

_FUSED = ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")


def _in_place(tracker: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tracker.operations += 1


def _per_channel(x: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    return tuple(torch.empty(x.shape[1], dtype=dtype, device="meta") for _ in range(count))


def _reduced(
    grad: torch.Tensor, x: torch.Tensor, mean: Any, invstd: Any, weight: Any, *wanted: bool
) -> tuple[torch.Tensor | None, ...]:
    """Two sums per channel where the input's gradient is wanted; the gradients of weight and bias."""
    sums = _per_channel(x, 2)
    like = mean if weight is None else weight
    grads = [torch.empty(x.shape[1], dtype=like.dtype, device="meta") if each else None for each in wanted[1:]]
    return (*(sums if wanted[0] else (None, None)), *grads)


def _like(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(x.shape, dtype=dtype or x.dtype, device="meta")


def _between(start: Any, end: Any, steps: int, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    ends = [each for each in (start, end) if isinstance(each, torch.Tensor)]
    complex_ends = [each.dtype for each in ends if each.dtype.is_complex]
    return torch.empty(steps, dtype=dtype or next(iter(complex_ends), torch.get_default_dtype()), device="meta")


_aten = torch.ops.aten
_BETWEEN = [
    getattr(packet, overload)
    for packet in (_aten.linspace, _aten.logspace)
    for overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
]
_SHAPED: dict[Any, Callable[..., Any]] = {
    _aten.batch_norm_stats.default: lambda x, *_, **__: _per_channel(x, 2),
    _aten.batch_norm_gather_stats_with_counts.default: lambda x, *_, **__: _per_channel(x, 2),
    _aten.batch_norm_gather_stats.default: lambda x, *_, **__: _per_channel(x, 2),
    _aten.batch_norm_elemt.default: lambda x, *_, **__: torch.empty_like(x),
    _aten.batch_norm_backward_reduce.default: _reduced,
    _aten.batch_norm_backward_elemt.default: lambda grad, x, *_, **__: torch.empty_like(x),
    _aten.cummax.default: lambda x, dim: (_like(x), _like(x, torch.int64)),
    _aten.cummin.default: lambda x, dim: (_like(x), _like(x, torch.int64)),
    _aten.logcumsumexp.default: lambda x, dim: _like(x),
    _aten.multilabel_margin_loss_backward.default: lambda grad, x, *_: _like(x),
    _aten.fractional_max_pool3d_backward.default: lambda grad, x, *_: _like(x),
    **dict.fromkeys(_BETWEEN, _between),
}


def _shaped(run: Callable[..., Any], tracker: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tracker.call(func, args, kwargs, run=run)


def _without_meta_kernel() -> list[Any]:
    found = []
    for name in _FUSED:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if op._schema.returns == [] and not has_kernel_for(op.name(), "Meta"):
                found.append(op)
    return found


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The handlers, and cuDNN's own answer that it is there, for the time of the block."""
    operations = _without_meta_kernel()
    with patches() as held:
        for op in operations:
            held.item(session.tracker.handlers, op, _in_place)
        for op, run in _SHAPED.items():
            held.item(session.tracker.handlers, op, partial(_shaped, run))
        held.item(torch.backends.cudnn.is_acceptable.__globals__, "_init", lambda: True)
        yield
