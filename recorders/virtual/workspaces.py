"""The workspace model: `Workspaces(target)` says what each operation's CUDA kernel allocates beside its outputs.

Matrix products are here; the other families have their own file and their own `ESTIMATORS`. An operation without an
entry allocates only what it returns, which recordings of real GPUs confirm for element-wise and foreach kernels,
softmax, layer norm forward, embedding forward, cat, dropout and fused optimizers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from . import attention_scratch, convolutions, index_scratch, losses, norm_scratch, recurrent, reduction_scratch
from .reduction_scratch import Estimator
from .scratch import Args, Arguments, Gpu, Kwargs, Scratch, Target, is_dense, target_of

if TYPE_CHECKING:
    from .session import Session

CUBLAS = "cuBLAS workspace (ATen/cuda/CublasHandlePool.cpp; measured: recordings on A100 and H100)"
CUBLASLT = "cublasLt workspace (ATen/cuda/CUDABlas.cpp gemm_and_bias; measured: 1 MiB in 507 events)"
COPY = "operand copied for cuBLAS, whose strides it cannot use (ATen/native/cuda/Blas.cpp prepare_matrix_for_cublas)"
LT_PERSISTENT = (2, 9)  # pytorch#156495: kept per handle and stream, instead of allocated per call
LT_SHARED = (2, 11)  # pytorch#168175: cublasLt uses the cuBLAS workspace
_LT_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_aten = torch.ops.aten


class Workspaces:
    """Callable as the tracker's `scratch_for`; one per target."""

    def __init__(self, target: Target, gpu: Gpu | None = None) -> None:
        self.target = target
        self._unasked = gpu  # the environment is read anew at the first product, as cuBLAS does

    def __call__(self, func: Any, args: Args, kwargs: Kwargs, out: Any, _gpu: object = None) -> Sequence[Scratch]:
        estimator = ESTIMATORS.get(func)
        if self._unasked is not None and func in _ON_CUBLAS:
            self.target, self._unasked = target_of(self._unasked), None
        return () if estimator is None else estimator(func, args, kwargs, out, self.target)


def scratch_for(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """What one call allocates beside `out`."""
    return Workspaces(target)(func, args, kwargs, out)


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The tracker asks this model for the scratch of each operation; convolutions keep their memory format."""
    session.tracker.scratch_for = Workspaces(target_of(session.target), session.target)
    session.tracker.handlers.update(convolutions.HANDLERS)
    try:
        yield
    finally:
        session.tracker.scratch_for = None
        for op in convolutions.HANDLERS:
            session.tracker.handlers.pop(op, None)


def _handle(target: Target) -> Scratch:
    return Scratch(bytes=target.cublas_bytes, source=CUBLAS, kind="handle")


def matrix_product(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """mm, mv, dot and the like: copies of operands with unusable strides, then the handle's workspace."""
    operands = [a for a in args if isinstance(a, torch.Tensor)][-2:]
    if not out.numel() or not operands[0].numel():
        return ()
    copies = [_copy(x) for x in operands if x.dim() == 2 and not _usable(x)]
    return [*copies, _handle(target)]


def addmm(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """With a row bias cublasLt adds it in the epilogue, with a workspace that newer torch shares with cuBLAS."""
    arguments = Arguments(func, args, kwargs)
    bias, a, b = args[:3]
    plain = matrix_product(func, args[:3], {}, out, target)
    if not plain or target.torch_version >= LT_SHARED:
        return plain
    with_epilogue = (
        arguments.get("beta", 1) == 1
        and bias.dim() == 1
        and bias.is_contiguous()
        and bias.shape[0] == b.shape[1]
        and a.dtype in _LT_DTYPES
        and min(*a.shape, *b.shape) > 1
        and out.is_contiguous()
    )
    if not with_epilogue:
        return plain
    return [*plain[:-1], _lt(target), plain[-1]]


def scaled_product(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """_scaled_mm of float8: cublasLt with the workspace of `addmm` (ATen/cuda/CUDABlas.cpp scaled_gemm)."""
    if not out.numel() or not args[0].numel():
        return ()
    return (_handle(target) if target.torch_version >= LT_SHARED else _lt(target),)


def batch_product(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """bmm and baddbmm: `prepare_batch_matrix_for_cublas` copies what cuBLAS cannot step through."""
    a, b = [x for x in args if isinstance(x, torch.Tensor)][-2:]
    if not out.numel() or not a.shape[2]:
        return ()
    _, rows, columns = out.shape
    _, row_stride, column_stride = out.stride()
    if row_stride == 1 and (columns == 1 or column_stride >= max(1, rows)):
        sides = ((a, 1, 2, rows, a.shape[2]), (b, 1, 2, a.shape[2], columns))
    else:  # computed transposed
        sides = ((b, 2, 1, columns, a.shape[2]), (a, 2, 1, a.shape[2], rows))
    copies = [_copy(x) for x, fast, leading, m, n in sides if not _batch_usable(x, fast, leading, m, n)]
    return [*copies, _handle(target)]


def solver(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """cuSOLVER and MAGMA: nothing is added, and the report says that it is missing."""
    return (Scratch(bytes=0, source=f"cuSOLVER or MAGMA workspace of {func.name()}: not modelled", estimated=True),)


def _lt(target: Target) -> Scratch:
    kept = target.torch_version >= LT_PERSISTENT
    return Scratch(bytes=target.cublaslt_bytes, source=CUBLASLT, kind="handle" if kept else "call")


def _usable(x: torch.Tensor) -> bool:
    (rows, columns), (row_stride, column_stride) = x.shape, x.stride()
    return (
        is_dense(x)
        or (row_stride == 1 and column_stride >= max(1, rows))
        or (column_stride == 1 and row_stride >= max(1, columns))
    )


def _batch_usable(x: torch.Tensor, fast: int, leading: int, m: int, n: int) -> bool:
    strides = x.stride()
    if strides[fast] == 1 and strides[leading] >= max(1, m):
        return True
    if strides[leading] == 1 and strides[fast] >= max(1, n):
        return True
    return bool(x.is_contiguous()) and strides[1] != 0 and strides[2] != 0


def _copy(x: torch.Tensor) -> Scratch:
    return Scratch(bytes=x.numel() * x.element_size(), source=COPY)


_PRODUCTS = (
    _aten.mm.default,
    _aten.mv.default,
    _aten.addmv.default,
    _aten.dot.default,
    _aten.vdot.default,
    _aten._int_mm.default,
    _aten.addbmm.default,
)
_ON_CUBLAS = frozenset(
    (
        *_PRODUCTS,
        _aten._scaled_mm.default,
        _aten.addmm.default,
        _aten._addmm_activation.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
    )
)
_SOLVERS = (
    _aten.linalg_inv_ex.default,
    _aten._linalg_svd.default,
    _aten.linalg_qr.default,
    _aten._linalg_eigh.default,
    _aten.linalg_eig.default,
    _aten.linalg_cholesky_ex.default,
    _aten.linalg_lu_factor_ex.default,
    _aten._linalg_solve_ex.default,
    _aten._linalg_det.default,
    _aten.linalg_lstsq.default,
    _aten.cholesky_solve.default,
    _aten.linalg_householder_product.default,
)
ESTIMATORS: dict[Any, Estimator] = {
    **dict.fromkeys(_SOLVERS, solver),
    **dict.fromkeys(_PRODUCTS, matrix_product),
    _aten.addmm.default: addmm,
    _aten._addmm_activation.default: addmm,
    _aten._scaled_mm.default: scaled_product,
    _aten.bmm.default: batch_product,
    _aten.baddbmm.default: batch_product,
    **reduction_scratch.ESTIMATORS,
    **index_scratch.ESTIMATORS,
    **norm_scratch.ESTIMATORS,
    **attention_scratch.ESTIMATORS,
    **convolutions.ESTIMATORS,
    **recurrent.ESTIMATORS,
    **losses.ESTIMATORS,
}
