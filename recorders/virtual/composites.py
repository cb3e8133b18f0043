"""Composite operations that look at `is_cuda()` in C++, where virtual (meta) tensors would take another road.

Three ways to put them right: a kernel on AutogradMeta for composites (dropout, attention, softmax into float, prod); a
Meta kernel for those that CUDA runs fused (rms_norm, the backward of mish); and "opening" an operation that is a
composite below autograd, so that its temporaries are seen (`OPENED`). Under inference_mode autograd keys are off and
the composites reach the tracker whole: the same kernels then serve as its handlers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from . import attention
from .private import (
    EXPLICIT_KEYS,
    below_autograd,
    has_kernel_for,
    open_composite,
    register_kernels,
    register_meta_kernels,
)
from .scratch import Args, Kwargs, Target, target_of
from .storages import is_virtual

if TYPE_CHECKING:
    from .session import Session
    from .tracker import Tracker

_aten = torch.ops.aten

# CompositeExplicitAutograd in native_functions.yaml, without a CUDA kernel, and with temporaries of their own
OPENED = (
    _aten._safe_softmax.default,
    _aten.logsumexp.default,
    _aten.logsumexp.out,
    _aten.binary_cross_entropy_with_logits.default,
    _aten.soft_margin_loss.default,
    _aten.soft_margin_loss.out,
    _aten.soft_margin_loss_backward.default,
    _aten.soft_margin_loss_backward.grad_input,
    _aten.dist.default,
    _aten._euclidean_dist.default,
    _aten._trilinear.default,
    _aten.mvlgamma.default,
    _aten.rrelu_with_noise_backward.default,
    _aten.ldexp.Tensor,
    _aten.allclose.default,
)
# one C++ function with hidden temporaries; run as one operation, and said so
HIDDEN = (
    _aten._transformer_encoder_layer_fwd.default,
    _aten._native_multi_head_attention.default,
)


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # as the schema names it
    """CUDA fuses the usual case, with a boolean mask (ATen/native/Dropout.cpp is_fused_kernel_acceptable)."""
    if train and 0 < p < 1 and is_virtual(input) and input.numel():
        result: torch.Tensor = _aten.native_dropout.default(input, p, train)[0]
        return result
    opened: torch.Tensor = open_composite(_aten.dropout.default, input, p, train)
    return opened


def sdpa(target: Target, query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if is_virtual(query):
        return attention.attend(query, *args, target=target, **kwargs)
    opened: torch.Tensor = open_composite(_aten.scaled_dot_product_attention.default, query, *args, **kwargs)
    return opened


def softmax(fused: Any, op: Any, input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """CUDA converts half to float inside the kernel (ATen/native/SoftMax.cpp)."""
    if dtype is torch.float32 and input.dtype is torch.float16 and is_virtual(input):
        result: torch.Tensor = fused(input, dim, True)
        return result
    opened: torch.Tensor = open_composite(op, input, dim, dtype)
    return opened


def one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:  # as the schema names it
    """CUDA scatters ones into zeros and asks for no values, unless for the number (ATen/native/Onehot.cpp)."""
    if not is_virtual(input) or not input.numel():
        opened: torch.Tensor = open_composite(_aten.one_hot.default, input, num_classes)
        return opened
    classes = num_classes if num_classes >= 0 else int(input.max().item()) + 1
    result = torch.zeros((*input.shape, classes), dtype=input.dtype, device=input.device)
    return result.scatter_(-1, input.unsqueeze(-1), 1)


class _Prod(torch.autograd.Function):
    """`prod` whose backward divides, as CUDA does when no factor is zero (FunctionsManual.cpp prod_backward)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None) -> torch.Tensor:
        with below_autograd():
            if dim is None:
                result: torch.Tensor = _aten.prod.default(x, dtype=dtype)
            else:
                result = _aten.prod.dim_int(x, dim, keepdim, dtype=dtype)
        ctx.save_for_backward(x, result)
        ctx.dim = None if keepdim else dim
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, result = ctx.saved_tensors
        grad = grads[0]
        if ctx.dim is not None and x.dim():
            grad, result = grad.unsqueeze(ctx.dim), result.unsqueeze(ctx.dim)
        zeros = x == 0  # CUDA counts the zeros before it divides
        del zeros
        return (grad * (result / x)).to(x.dtype), None, None, None


def prod(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    result: torch.Tensor = _Prod.apply(x, None, False, dtype)  # type: ignore[no-untyped-call]
    return result


def prod_dim(x: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    result: torch.Tensor = _Prod.apply(x, dim, keepdim, dtype)  # type: ignore[no-untyped-call]
    return result


def fused_rms_norm(
    x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """_fused_rms_norm_cuda: the result, and 1 / rms per row in float."""
    accumulate = torch.float64 if x.dtype is torch.float64 else torch.float32
    rows = x.shape[: x.dim() - len(normalized_shape)] + (1,) * len(normalized_shape)
    return torch.empty(x.shape, dtype=x.dtype, device="meta"), torch.empty(rows, dtype=accumulate, device="meta")


def mish_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One kernel on CUDA (native_functions.yaml), eight operations where there is no Meta kernel."""
    return torch.empty_like(x)


def on_autograd_meta(target: Target) -> dict[str, tuple[Any, Callable[..., Any]]]:
    """Overload name -> (operation, kernel) for the composites that CUDA runs differently."""
    return {
        "dropout": (_aten.dropout.default, dropout),
        "scaled_dot_product_attention": (_aten.scaled_dot_product_attention.default, partial(sdpa, target)),
        "one_hot": (_aten.one_hot.default, one_hot),
        "softmax.int": (_aten.softmax.int, partial(softmax, _aten._softmax.default, _aten.softmax.int)),
        "log_softmax.int": (
            _aten.log_softmax.int,
            partial(softmax, _aten._log_softmax.default, _aten.log_softmax.int),
        ),
    }


def open_explicit(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a composite's own C++ body with the tracker watching."""
    if not any(isinstance(a, torch.Tensor) and is_virtual(a) for a in args):
        return NotImplemented
    key = next(key for key in EXPLICIT_KEYS if has_kernel_for(func.name(), key))
    return tracker.reentered(partial(func._op_dk, key), args, kwargs)


def host_seeds(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The random seed and offset of memory-efficient attention are CPU tensors (attention.cu, [Seed and Offset])."""

    def run(*args: Any, **kwargs: Any) -> Any:
        out, lse, *_ = func(*args, **kwargs)
        return out, lse, torch.empty((), dtype=torch.int64), torch.empty((), dtype=torch.int64)

    return tracker.call(func, args, kwargs, run=run)


def _whole(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """One kernel on CUDA, though torch could decompose it."""
    return tracker.call(func, args, kwargs)


def no_buffer(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """log_sigmoid on CUDA leaves its buffer empty (ATen/native/cuda/ActivationLogSigmoidKernel.cu)."""

    def run(x: torch.Tensor) -> Any:
        return torch.empty_like(x), torch.empty(0, dtype=x.dtype, device="meta")

    return tracker.call(func, args, kwargs, run=run)


def never_packed(session: "Session", tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """TransformerEncoder asks whether it may drop padding (nested tensors); the answer needs the mask's values."""
    if not is_virtual(args[0]):
        return NotImplemented
    session.note("TransformerEncoder in evaluation: padded tokens are kept, where CUDA packs them (nested tensors)")
    return False


def _said(session: "Session", tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    session.note(f"temporaries inside {func.name()} are not seen")
    return tracker.call(func, args, kwargs)


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """Put the kernels and handlers in place; on exit torch's own are back."""
    target, tracker = target_of(session.target), session.tracker
    composites = on_autograd_meta(target)
    kernels = {name: kernel for name, (_, kernel) in composites.items()}
    held = [
        register_kernels("AutogradMeta", {**kernels, "prod": prod, "prod.dim_int": prod_dim}),
        register_meta_kernels({"mish_backward": mish_backward}),
    ]
    if hasattr(_aten, "_fused_rms_norm") and target.torch_version >= (2, 9):
        held.append(register_meta_kernels({"_fused_rms_norm": fused_rms_norm}))
        tracker.handlers[_aten._fused_rms_norm.default] = _whole
    for op, kernel in composites.values():
        tracker.handlers[op] = partial(_reentered, kernel)
    for op in OPENED:
        if any(has_kernel_for(op.name(), key) for key in EXPLICIT_KEYS):  # type: ignore[no-untyped-call]
            tracker.handlers[op] = open_explicit
    for op in HIDDEN:
        tracker.handlers[op] = partial(_said, session)
    tracker.handlers[_aten._nested_tensor_from_mask_left_aligned.default] = partial(never_packed, session)
    tracker.handlers[_aten.log_sigmoid_forward.default] = no_buffer
    tracker.handlers[_aten._scaled_dot_product_efficient_attention.default] = host_seeds
    try:
        yield
    finally:
        for undo in held:
            undo()


def _reentered(kernel: Callable[..., Any], tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    return tracker.reentered(kernel, args, kwargs)
