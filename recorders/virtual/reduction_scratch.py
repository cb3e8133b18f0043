"""Which reduction kernel an operation runs, with which accumulator: its staging, and casts before it."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from ...allocator.reductions import MAX_32BIT_BYTES, workspace_bytes
from .scratch import Args, Arguments, Kwargs, Scratch, Target, contiguous_strides, is_dense

SOURCE = "gpu_reduce_kernel (ATen/native/cuda/Reduce.cuh)"
CAST = "cast before a reduction (ATen/native/ReduceOpsUtils.h make_reduction)"
_LOW = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten

Estimator = Callable[[Any, Args, Kwargs, Any, Target], Sequence[Scratch]]
Accumulator = Callable[[torch.Tensor], int]


def kernel_scratch(
    x: torch.Tensor, dims: Sequence[int], accumulator: int, target: Target, *, vector: int = 4, itemsize: int = 0
) -> list[Scratch]:
    """Staging and semaphores of one reduction of `x` over `dims` (empty = all); [] when one block per output does."""
    shape, strides = tuple(x.shape), x.stride()
    if itemsize:  # reduced from a cast copy, which keeps dense strides and makes others contiguous
        strides = strides if is_dense(x) else contiguous_strides(shape)
    staging, semaphores = workspace_bytes(
        shape,
        strides,
        dims,
        accumulator_bytes=accumulator,
        sm_count=target.sm_count,
        threads_per_sm=target.threads_per_sm,
        storage_offset=0 if itemsize else int(x.storage_offset()),
        input_vector=vector,
    )
    if not staging:
        return []
    # TensorIterator splits what 32 bits cannot index; the halves are reduced one after the other and not modelled
    estimated = prod(shape) * (itemsize or x.element_size()) > MAX_32BIT_BYTES
    return [Scratch(bytes=n, source=SOURCE, estimated=estimated) for n in (staging, semaphores)]


def _dims(arguments: Arguments) -> Sequence[int]:
    dim = arguments.get("dim")
    return () if dim is None else (dim,) if isinstance(dim, int) else dim


def _wide(x: torch.Tensor) -> int:
    return 4 if x.dtype in _LOW else x.element_size()


def _own(x: torch.Tensor) -> int:
    return x.element_size()


def _pair(x: torch.Tensor) -> int:
    """value and int64 index."""
    return 16


def _welford(x: torch.Tensor) -> int:
    return 32 if x.dtype is torch.float64 else 16


def _bool(x: torch.Tensor) -> int:
    return 1


def reduction(accumulator: Accumulator, *, casts: bool = False, vector: int = 4, wide_loads: bool = False) -> Estimator:
    """An estimator for `op(self, dim...)`. `casts`: the input is first converted to the result's dtype.

    `wide_loads`: 16-bit inputs are loaded eight at a time (sum, since torch 2.7).
    """

    def estimate(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
        x = args[0]
        if not x.numel():
            return ()
        result = out if isinstance(out, torch.Tensor) else out[0]
        dims = _dims(Arguments(func, args, kwargs))
        if casts and x.dtype is not result.dtype and not (x.dtype in _LOW and result.dtype is torch.float32):
            size = result.element_size()
            copy = Scratch(bytes=x.numel() * size, source=CAST)
            return [copy, *kernel_scratch(x, dims, size, target, vector=vector, itemsize=size)]
        wide = wide_loads and x.element_size() == 2 and target.torch_version >= (2, 7)
        return kernel_scratch(x, dims, accumulator(x), target, vector=8 if wide else vector)

    return estimate


def _count_nonzero(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """`(self != 0).sum(dim)`: a bool, its int64 copy, the sum (ATen/native/TensorAdvancedIndexing.cpp)."""
    x = args[0]
    dims = _dims(Arguments(func, args, kwargs))
    mask = () if x.dtype is torch.bool else (Scratch(bytes=x.numel(), source="count_nonzero", before=True),)
    return [*mask, Scratch(bytes=x.numel() * 8, source=CAST), *kernel_scratch(x, dims, 8, target, itemsize=8)]


def _foreach_norm(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """One partial result per chunk of 65,536 elements and tensor (ATen/native/cuda/ForeachReduceOp.cu)."""
    tensors = args[0]
    chunks = max(-(-t.numel() // 65536) for t in tensors)
    size = max(4, out[0].element_size())
    return (Scratch(bytes=len(tensors) * chunks * size, source="ForeachReduceOp.cu output_per_tensor", before=True),)


_sum = reduction(_wide, casts=True, wide_loads=True)
_mean = reduction(_wide, casts=True)
_var = reduction(_welford, vector=2)

ESTIMATORS: dict[Any, Estimator] = {
    _aten.sum.default: _sum,
    _aten.sum.dim_IntList: _sum,
    _aten.sum.IntList_out: _sum,
    _aten.nansum.default: _mean,
    _aten.mean.default: _mean,
    _aten.mean.dim: _mean,
    _aten.prod.default: _mean,
    _aten.prod.dim_int: _mean,
    _aten.linalg_vector_norm.default: _mean,
    _aten.norm.Scalar: _mean,
    _aten.norm.ScalarOpt_dim: _mean,
    _aten.norm.ScalarOpt_dtype: _mean,
    _aten.norm.ScalarOpt_dim_dtype: _mean,
    _aten.any.default: reduction(_bool),
    _aten.any.dim: reduction(_bool),
    _aten.any.dims: reduction(_bool),
    _aten.all.default: reduction(_bool),
    _aten.all.dim: reduction(_bool),
    _aten.all.dims: reduction(_bool),
    _aten.amax.default: reduction(_own),
    _aten.amin.default: reduction(_own),
    _aten.max.default: reduction(_own),
    _aten.min.default: reduction(_own),
    _aten.max.dim: reduction(_pair),
    _aten.min.dim: reduction(_pair),
    _aten.argmax.default: reduction(_pair),
    _aten.argmin.default: reduction(_pair),
    _aten.aminmax.default: reduction(lambda x: 2 * x.element_size()),
    _aten.var.correction: _var,
    _aten.std.correction: _var,
    _aten.var_mean.correction: _var,
    _aten.std_mean.correction: _var,
    _aten.count_nonzero.dim_IntList: _count_nonzero,
    _aten.count_nonzero.default: _count_nonzero,
    _aten._foreach_norm.Scalar: _foreach_norm,
}
