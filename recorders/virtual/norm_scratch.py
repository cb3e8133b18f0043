"""Partial sums inside normalisation kernels, and the whole temporaries of a few element-wise composites."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .reduction_scratch import kernel_scratch
from .scratch import Args, Arguments, Kwargs, Scratch, Target, contiguous_strides

LAYER_NORM = "LaunchGammaBetaBackwardCUDAKernel (ATen/native/cuda/layer_norm_kernel.cu)"
GROUP_NORM = "GroupNormKernelImplInternal (ATen/native/cuda/group_norm_kernel.cu)"
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


def _accumulator(x: torch.Tensor) -> int:
    return 4 if x.dtype in (torch.float16, torch.bfloat16) else x.element_size()


ESTIMATORS = {
    _aten.native_layer_norm.default: layer_norm,
    _aten.native_layer_norm_backward.default: layer_norm_backward,
    _aten.native_group_norm.default: group_norm,
    _aten.native_group_norm_backward.default: group_norm_backward,
}
