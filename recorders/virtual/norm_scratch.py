"""Partial sums inside normalisation kernels, and the whole temporaries of a few element-wise composites."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .convolutions import is_channels_last
from .reduction_scratch import kernel_scratch
from .scratch import Args, Arguments, Kwargs, Scratch, Target, contiguous_strides

LAYER_NORM = "LaunchGammaBetaBackwardCUDAKernel (ATen/native/cuda/layer_norm_kernel.cu)"
GROUP_NORM = "GroupNormKernelImplInternal (ATen/native/cuda/group_norm_kernel.cu)"
BATCH_NORM = (
    "cuDNN batch norm of channels-last tensors in training (persistent mode): its reserve kept for backward and its "
    "workspace are not published and taken as 0"
)
CUDNN_MOST_SAMPLES = 880801  # of a batch in training, aten/src/ATen/native/Normalization.cpp
_aten = torch.ops.aten


def layer_norm_backward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """More than 65,536 rows of few columns: partial weight gradients per 32 rows, then `sum(0)` (since torch 2.8)."""
    arguments = Arguments(func, args, kwargs)
    x, weight = arguments.get("input"), arguments.get("weight")
    mask = arguments.get("output_mask", (True, True, True))
    steps = [
        Scratch(bytes=t.numel() * t.element_size(), source=LAYER_NORM, before=t is x)
        for t in (x, arguments.get("grad_out"))
        if not t.is_contiguous()
    ]
    columns = prod(arguments.get("normalized_shape"))
    rows = x.numel() // columns if columns else 0
    wanted = [i for i in range(1, len(mask)) if mask[i]]
    if target.torch_version < (2, 8) or not wanted or weight is None:
        return steps
    if rows <= 64 * 1024 or columns // 32 >= target.sm_count // 2:
        return steps
    across = -(-columns // 32)
    partials = min((64 * 1024 // 2) // across, -(-rows // 32))
    size = weight.element_size()
    steps += [Scratch(bytes=partials * columns * size, source=LAYER_NORM) for _ in wanted]
    stand_in = torch.empty_strided((partials, columns), contiguous_strides((partials, columns)), device="meta")
    for _ in wanted:
        steps.append(Scratch(bytes=columns * size, source=LAYER_NORM))  # the sum, which becomes the result
        steps += kernel_scratch(stand_in, (0,), 4, target)
    return steps


def layer_norm(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """The kernel wants its input contiguous."""
    x = args[0]
    if x.is_contiguous():
        return ()
    return (Scratch(bytes=x.numel() * x.element_size(), source=LAYER_NORM, before=True),)


def group_norm(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Per sample and channel one scale and one shift, where there is a weight or bias and more than one pixel."""
    arguments = Arguments(func, args, kwargs)
    plain = arguments.get("weight") is None and arguments.get("bias") is None
    if arguments.get("HxW") == 1 or plain:
        return ()
    each = _accumulator(arguments.get("input")) * arguments.get("N") * arguments.get("C")
    return [Scratch(bytes=each, source=GROUP_NORM) for _ in range(2)]


def group_norm_backward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Two sums per sample and channel; for the input's gradient two factors per group, one per channel."""
    arguments = Arguments(func, args, kwargs)
    size, samples = _accumulator(arguments.get("input")), arguments.get("N")
    channels, groups = size * samples * arguments.get("C"), size * samples * arguments.get("group")
    sizes = [channels, channels]
    if arguments.get("HxW") > 1 and arguments.get("output_mask", (True,))[0]:
        sizes += [groups, groups]
        if arguments.get("weight") is not None:
            sizes.append(channels)
    return [Scratch(bytes=n, source=GROUP_NORM) for n in sizes]


def batch_norm(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Nothing is added, and where cuDNN's persistent kernels run the report says what is missing."""
    arguments = Arguments(func, args, kwargs)
    if not arguments.get("training", True) or not _by_cudnn(arguments):  # one overload is for training only
        return ()
    return (Scratch(bytes=0, source=BATCH_NORM, estimated=True),) if is_channels_last(arguments.get("input")) else ()


def _by_cudnn(arguments: Arguments) -> bool:
    """_select_batch_norm_backend in training (aten/src/ATen/native/Normalization.cpp)."""
    x, weight, bias = (arguments.get(name) for name in ("input", "weight", "bias"))
    mean, variance = arguments.get("running_mean"), arguments.get("running_var")
    if weight is None or bias is None or (mean is None) != (variance is None) or not torch.backends.cudnn.enabled:
        return False
    if torch.bfloat16 in (x.dtype, weight.dtype) or (x.dtype is torch.float16 and weight.dtype is not torch.float32):
        return False
    return bool(x.dim() >= 3 and x.shape[0] <= CUDNN_MOST_SAMPLES)


def _accumulator(x: torch.Tensor) -> int:
    return 4 if x.dtype in (torch.float16, torch.bfloat16) else x.element_size()


ESTIMATORS = {
    **dict.fromkeys(
        (
            _aten.native_batch_norm.default,
            _aten._native_batch_norm_legit.default,
            _aten._native_batch_norm_legit.no_stats,
            _aten._batch_norm_with_update.default,
            _aten.cudnn_batch_norm.default,
        ),
        batch_norm,
    ),
    _aten.native_layer_norm.default: layer_norm,
    _aten.native_layer_norm_backward.default: layer_norm_backward,
    _aten.native_group_norm.default: group_norm,
    _aten.native_group_norm_backward.default: group_norm_backward,
}
