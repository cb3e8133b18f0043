"""Convolutions: copies of operands are PyTorch's and exact; the workspace is what cuDNN says, or bounded without it.

cuDNN's tensor-core kernels work on channels-last data: for channels-first tensors they convert input, weight and output
through their workspace, in float (TF32) as in half. How much each plan takes cuDNN itself tells (`cudnn_plans`).
PyTorch takes the heuristic's first plan, and the next one where that finds no memory (Conv_v8.cpp try_configs). Without
a cuDNN to ask, the workspace is estimated as one copy of each tensor.

With `torch.backends.cudnn.benchmark` every new shape is tried with the first ten plans, in a workspace as large as the
greediest of all that fits what is free; then PyTorch empties the allocator's cache and takes the fastest plan
(Conv_v8.cpp run_single_conv). Which of the ten that is only timing could tell: `cudnn_choice` takes one, and the least
and the most of the ten bound it. The same for `--target-torch`, whose cuDNN offers the same plans (9.8 and 9.24 do) but
may like others best: then any of them may run.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from .cudnn_choice import is_product, likely
from .cudnn_fft import tiling_bytes
from .cudnn_plans import Direction, Dtype, Note, Plan, Problem, installed
from .reduction_scratch import kernel_scratch
from .scratch import Args, Arguments, Kwargs, Scratch, Target, installed_torch
from .storages import is_virtual

if TYPE_CHECKING:
    from .tracker import Tracker

WORKSPACE = (
    "cuDNN convolution workspace (no cuDNN to ask is here: pip install 'oomdoc[cudnn]'; a channels-last copy of each "
    "tensor is assumed)"
)
ASKED = "cuDNN convolution workspace (measured: the installed cuDNN was asked)"
FASTEST = "cuDNN convolution workspace (the installed cuDNN was asked; which of its plans is fastest is assumed)"
TRIAL = "workspaces of cudnn.benchmark's trials (not published; given up where memory is short, never an out-of-memory)"
COPY = "operand brought into the convolution's memory format (ATen/native/Convolution.cpp)"
PLANS_TRIED = 10  # torch.backends.cudnn.benchmark_limit, if nobody sets it
_HALF = (torch.float16, torch.bfloat16)
_DTYPES = {
    torch.float32: Dtype.FLOAT,
    torch.float64: Dtype.DOUBLE,
    torch.float16: Dtype.HALF,
    torch.bfloat16: Dtype.BFLOAT16,
}
_TRANSPOSED: dict[Direction, Direction] = {"forward": "data", "data": "forward", "filter": "filter"}
_aten = torch.ops.aten


def forward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    arguments = Arguments(func, args, kwargs)
    x, weight = arguments.get("input"), arguments.get("weight")
    last = channels_last(x, weight)
    steps = [_copy(t, before=True) for t in (x, weight) if not _in_format(t, last)]
    if native_depthwise(arguments):
        return steps
    return [*steps, *_library(arguments, "forward", (x, weight, out), last, target)]


def backward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Input gradient and weight gradient one after the other, then the bias gradient as a plain sum."""
    arguments = Arguments(func, args, kwargs)
    grad, x, weight = (arguments.get(name) for name in ("grad_output", "input", "weight"))
    mask = arguments.get("output_mask", (True, True, True))
    last = channels_last(x, weight)
    steps = [_copy(t, before=True) for t in (x, weight, grad) if not _in_format(t, last)]
    if not native_depthwise(arguments):
        wanted: list[Direction] = [name for name, on in (("data", mask[0]), ("filter", mask[1])) if on]  # type: ignore[misc]
        for direction in wanted:
            each = _library(arguments, direction, (x, weight, grad), last, target)
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


def native_depthwise(arguments: Arguments) -> bool:
    """torch's own depthwise kernels, without workspace (Convolution.cpp use_cudnn_depthwise)."""
    x, weight, groups = arguments.get("input"), arguments.get("weight"), arguments.get("groups", 1)
    if not x.shape[1] == groups > 1 or weight.shape[0] % groups or arguments.get("transposed", False):
        return False
    return not channels_last(x, weight) and not _half_depthwise_by_cudnn(x, weight, arguments)


def _half_depthwise_by_cudnn(x: torch.Tensor, weight: torch.Tensor, arguments: Arguments) -> bool:
    """check_cudnn_depthwise_workload_with_filter (Convolution.cpp), for cuDNN from 8.2 on."""
    stride, dilation = (set(arguments.get(name)) for name in ("stride", "dilation"))
    flat = x.dim() == 3
    square = x.dim() == 4 and len(stride) == 1
    if x.dtype is not torch.float16 or dilation != {1} or x.shape[1] < 32 or not (flat or square):
        return False
    step, size, width = max(stride), weight.shape[-1], x.shape[-1]
    if flat and step == 1:
        return True
    if len(set(weight.shape[2:])) != 1 or size not in (1, 3, 5) or width < 7 or step > 2:
        return False
    batch, channels = x.shape[:2]
    if step == 1:
        return True
    if batch == 1:
        return size != 1 or width <= 28
    if size == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)


def _library(
    arguments: Arguments, direction: Direction, tensors: Sequence[torch.Tensor], last: bool, target: Target
) -> list[Scratch]:
    """What cuDNN takes for one of the three products of input, weight and output (or their gradients)."""
    problem = _problem(arguments, direction, tensors, last)
    plans = [] if problem is None else _plans(problem, target)
    benchmark = torch.backends.cudnn.benchmark
    if problem is None or not plans:
        copies = _copies(problem, target)
        sizes: tuple[int, ...] = (0 if problem is not None and is_product(problem) else copies, 0)
        found = _workspace(WORKSPACE, sizes, (0, 2 * copies))  # a plan without workspace to one that copies twice
    else:
        sizes = tuple(plan.workspace for plan in plans)
        found = _chosen(plans, problem, target, benchmark=benchmark)
    steps = [found] if found.bytes or found.estimated else []
    if benchmark:
        greedy = max(*sizes, 0 if problem is None else tiling_bytes(problem))
        key = (problem, *_settings())
        steps.insert(0, Scratch(bytes=greedy, source=TRIAL, kind="trial", key=key, instead=sizes, estimated=True))
    return steps


def _chosen(plans: Sequence[Plan], problem: Problem, target: Target, *, benchmark: bool) -> Scratch:
    """The heuristic's favourite, or what is fastest of those that are tried; a cuDNN that is not here may try any."""
    here = target.torch_version == installed_torch()
    sizes = tuple(plan.workspace for plan in plans)
    if here and not benchmark:
        # a product of matrices may have a plan that is not made without a GPU, as the FFT has
        return _workspace(ASKED, sizes, (min(sizes) if is_product(problem) else sizes[0], sizes[0]))
    tried = plans[: _limit()] if here else plans
    first = likely(tried, problem, target.flops, target.memory_bandwidth)
    within = [plan.workspace for plan in tried]
    return _workspace(FASTEST, (sizes[first], *sizes[:first], *sizes[first + 1 :]), (min(within), max(within)))


def _limit() -> int | None:
    """How many plans a trial runs; a CPU build of torch does not know the setting."""
    limit: int | None = torch.backends.cudnn.benchmark_limit
    return PLANS_TRIED if limit is None else limit or None


def _workspace(source: str, sizes: tuple[int, ...], between: tuple[int, int]) -> Scratch:
    return Scratch(
        bytes=sizes[0],
        source=source,
        instead=sizes[1:],
        between=between,
        estimated=between[0] != between[1],
    )


def _problem(arguments: Arguments, direction: Direction, tensors: Sequence[torch.Tensor], last: bool) -> Problem | None:
    """For a transposed convolution the input is what a plain one would put out."""
    if tensors[0].dtype not in _DTYPES:
        return None
    x, weight, y = (tuple(t.shape) for t in tensors)
    dims = len(x) - 2
    stride, padding, dilation = (_each(arguments.get(name), dims) for name in ("stride", "padding", "dilation"))
    if dims == 1:  # Convolution.cpp view1d_as_2d
        x, weight, y = ((*shape[:2], 1, shape[2]) for shape in (x, weight, y))
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    if arguments.get("transposed", False):
        x, y, direction = y, x, _TRANSPOSED[direction]
    return Problem(direction, x, weight, y, stride, padding, dilation, _DTYPES[tensors[0].dtype], last)


def _each(values: Sequence[int], dims: int) -> tuple[int, ...]:
    return tuple(values) if len(values) == dims else tuple(values) * dims


def _settings() -> tuple[bool, bool]:
    """(deterministic, allow TF32), which the cache of tried plans tells apart (Conv_v8.cpp CacheKey)."""
    deterministic = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return deterministic, bool(torch.backends.cudnn.allow_tf32)


def _plans(problem: Problem, target: Target) -> list[Plan]:
    """What PyTorch chooses from (Conv_v8.cpp filterEngineConfigs)."""
    library = installed(target.compute_capability)
    if library is None:
        return []
    deterministic, tf32 = _settings()
    unwanted = {Note.DOWN_CONVERT_INPUTS}
    if deterministic:
        unwanted.add(Note.NONDETERMINISTIC)
    if problem.dtype is Dtype.FLOAT and not tf32:
        unwanted.add(Note.TENSOR_CORE)
    return [plan for plan in library.plans(problem) if not plan.notes & unwanted]


def _copies(problem: Problem | None, target: Target) -> int:
    """Without a cuDNN to ask: a copy of each tensor where tensor cores want another format, in bytes."""
    if problem is None:
        return 0
    on_halves = problem.dtype in (Dtype.HALF, Dtype.BFLOAT16)
    weight = _numel(problem.weight)
    summed = 4 * weight if on_halves and problem.direction == "filter" else 0  # the gradient's sums, in float
    if (problem.channels_last and on_halves) or not _tensor_cores(problem.dtype, target):
        return summed
    elements = weight + _numel(problem.x) + _numel(problem.y)
    return summed + elements * (2 if on_halves else 4)


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _tensor_cores(dtype: Dtype, target: Target) -> bool:
    if dtype is Dtype.HALF:
        return target.major >= 7
    if dtype is Dtype.BFLOAT16:
        return target.major >= 8
    return dtype is Dtype.FLOAT and target.major >= 8 and bool(torch.backends.cudnn.allow_tf32)


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
    if not is_virtual(x) or not channels_last(x, weight):
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
