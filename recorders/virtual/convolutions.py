"""Workspace of convolutions: cuDNN's is not published, so what its kernels must hold bounds it; copies are exact.

cuDNN's tensor-core kernels work on channels-last data. For channels-first tensors it converts input, weight and output
through its workspace, so their sizes bound it; channels-last tensors need none forward, and a float copy of the weight
gradient backward. In float, filters of one pixel need none either: networks of such and of depthwise convolutions take
on an A100 what they take without (docs/accuracy.md; measured: itu-rad/GPUMemNet). 105 workspaces in recordings of real
GPUs lie between 50 KB and 128 MiB. Every such number is marked estimated.

With `torch.backends.cudnn.benchmark` every new shape is tried with all plans, in a workspace as large as the greediest
of them asks for; PyTorch halves it until it fits, and empties the allocator's cache when the fastest plan is known
(Conv_v8.cpp run_single_conv). The emptied cache is made here; the trial's own workspace is in no peak: it is not
published, it is gone after the trial, and it never is what a job runs out of memory for.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .reduction_scratch import kernel_scratch
from .scratch import Args, Arguments, Kwargs, Scratch, Target
from .storages import is_virtual

if TYPE_CHECKING:
    from .tracker import Tracker

WORKSPACE = "cuDNN convolution workspace (not published; bounded by the channels-last copies of its tensors)"
TRIAL = "workspaces of cudnn.benchmark's trials (not published; given up where memory is short, never an out-of-memory)"
COPY = "operand brought into the convolution's memory format (ATen/native/Convolution.cpp)"
_HALF = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten


def forward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    arguments = Arguments(func, args, kwargs)
    x, weight = arguments.get("input"), arguments.get("weight")
    last = channels_last(x, weight)
    steps = [_copy(t, before=True) for t in (x, weight) if not _in_format(t, last)]
    if _depthwise_kernel(x, weight, arguments.get("groups", 1)):
        return steps
    return [*steps, *_trial("forward", args, (x, weight)), *_workspace(target, last, weight, (x, weight, out), ())]


def backward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Input gradient and weight gradient one after the other, then the bias gradient as a plain sum."""
    arguments = Arguments(func, args, kwargs)
    grad, x, weight = (arguments.get(name) for name in ("grad_output", "input", "weight"))
    mask = arguments.get("output_mask", (True, True, True))
    last = channels_last(x, weight)
    steps = [_copy(t, before=True) for t in (x, weight, grad) if not _in_format(t, last)]
    if not _depthwise_kernel(x, weight, arguments.get("groups", 1)):
        for name, wanted, tensors, floats in (
            ("input", mask[0], (grad, weight, x), ()),
            ("weight", mask[1], (x, grad, weight), (weight,)),
        ):
            if wanted:
                each = [*_trial(name, args, (x, weight)), *_workspace(target, last, weight, tensors, floats)]
                steps += [_brief(s, len(steps) + i + 1) for i, s in enumerate(each)]
    if mask[2]:
        dims = (0, *range(2, grad.dim()))
        steps += kernel_scratch(grad, dims, 4 if grad.dtype in _HALF else grad.element_size(), target)
    return steps


def channels_last(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """cudnn_conv_suggest_memory_format: channels last as soon as input or weight is."""
    return any(is_channels_last(t) for t in (x, weight))


def is_channels_last(t: torch.Tensor) -> bool:
    """Its strides are channels last and not those of a contiguous tensor as well."""
    if t.dim() not in (4, 5) or t.shape[1] == 1 or t.is_contiguous():
        return False
    return t.is_contiguous(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)


def _in_format(t: torch.Tensor, last: bool) -> bool:
    if last and t.dim() in (4, 5):
        return t.is_contiguous(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)
    return t.is_contiguous()


def _depthwise_kernel(x: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """torch's own depthwise kernels, without workspace: float inputs, one group per channel."""
    return x.shape[1] == groups > 1 and weight.shape[0] % groups == 0 and x.dtype not in _HALF


def _workspace(
    target: Target,
    last: bool,
    weight: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    in_float: Sequence[torch.Tensor],
) -> list[Scratch]:
    nbytes = sum(4 * t.numel() for t in in_float if t.dtype in _HALF)
    in_place = tensors[0].dtype is torch.float32 and weight.shape[2:].numel() == 1
    if not last and not in_place and _tensor_cores(tensors[0], target):
        nbytes += sum(t.numel() * t.element_size() for t in tensors)
    return [Scratch(bytes=nbytes, source=WORKSPACE, estimated=True)] if nbytes else []


def _trial(direction: str, args: Args, operands: Sequence[torch.Tensor]) -> list[Scratch]:
    """What tells one case from another is the call's shapes and settings (Conv_v8.cpp CacheKey)."""
    if not torch.backends.cudnn.benchmark:
        return []
    shapes = tuple((t.shape, t.stride(), t.dtype) for t in operands)
    settings = tuple(tuple(each) for each in args if isinstance(each, (list, tuple)))
    return [Scratch(bytes=0, source=TRIAL, kind="trial", key=(direction, shapes, settings), estimated=True)]


def _tensor_cores(x: torch.Tensor, target: Target) -> bool:
    if x.dtype is torch.float16:
        return target.major >= 7
    if x.dtype is torch.bfloat16:
        return target.major >= 8
    return x.dtype is torch.float32 and target.major >= 8 and bool(torch.backends.cudnn.allow_tf32)


def _copy(t: torch.Tensor, *, before: bool) -> Scratch:
    return Scratch(bytes=t.numel() * t.element_size(), source=COPY, before=before)


def _brief(scratch: Scratch, until: int) -> Scratch:
    return replace(scratch, until=until)


def in_its_format(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """cuDNN's output is channels last where input or weight is (determine_backend_memory_format, Convolution.cpp).

    The meta kernel of torch 2.13 makes every output contiguous, because a meta tensor has no backend.
    """
    arguments = Arguments(func, args, kwargs)
    x, weight = arguments.get("input"), arguments.get("weight")
    if not is_virtual(x) or not channels_last(x, weight) or _depthwise_kernel(x, weight, arguments.get("groups", 1)):
        return NotImplemented
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        out: torch.Tensor = func(*args, **kwargs)
        return torch.empty_like(out, memory_format=last)

    return tracker.call(func, args, kwargs, run=run)


HANDLERS = {_aten.convolution.default: in_its_format}
ESTIMATORS = {
    _aten.convolution.default: forward,
    _aten.convolution_backward.default: backward,
}
