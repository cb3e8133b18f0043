"""Sort buffers and scans inside indexing kernels: accumulating index_put, embedding backward, sort, scans, top-k."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from . import cub
from .scratch import Args, Arguments, Kwargs, Scratch, Target

INDEX_PUT = "index_put_with_sort_kernel (ATen/native/cuda/Indexing.cu; measured: recordings of language models)"
EMBEDDING = "embedding_dense_backward_cuda (ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu)"
SORT = "sort of long rows (ATen/native/cuda/Sort.cpp; upper bound of its three algorithms)"
SCAN = "inclusive scan of a whole tensor (cub::DeviceScan)"
TOPK = "multi-block top-k (ATen/native/cuda/TensorTopK.cu mbtopk; measured: 16,384 bytes for 32 blocks)"
_aten = torch.ops.aten
ROWS_PER_THREAD = 10  # NROWS_PER_THREAD
MOST_ATOMIC_BLOCKS = 4  # MAX_ATOMIC_ACCUM_BLOCKS_PER_SM
SMALL_EMBEDDING = 3072  # up to here one kernel accumulates in place
SMALL_SORT = 4096  # rows up to here are sorted in place


def index_put(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Only with `accumulate`: per index tensor a remainder and a product, then the buffers of one radix sort."""
    arguments = Arguments(func, args, kwargs)
    if not (arguments.get("accumulate", False) or torch.are_deterministic_algorithms_enabled()):
        return ()
    x, indices = arguments.get("self"), [i for i in arguments.get("indices") if i is not None]
    if not indices or any(i.dtype in (torch.bool, torch.uint8) for i in indices):
        return ()  # masks are made into indices first: see datadependent
    n = prod(torch.broadcast_shapes(*(i.shape for i in indices)))  # type: ignore[no-untyped-call]
    if not n:
        return ()
    steps: list[Scratch] = []
    for position in range(len(indices)):
        start = len(steps)
        steps.append(_index(8 * n, INDEX_PUT, until=start + 2))  # remainder, gone once the product is made
        steps.append(_index(8 * n, INDEX_PUT, until=-1 if position == 0 else start + 2))
    sorts = len(steps)
    rows = prod(s for s, i in zip(x.shape, arguments.get("indices"), strict=False) if i is not None)
    bits = cub.index_bits(max(rows - 1, 0))
    steps += [_index(8 * n, INDEX_PUT) for _ in range(3)]  # sorted, original order, 0..n-1
    temporary = cub.radix_sort_pairs_bytes(n, 8, 8, bits)
    steps.append(Scratch(bytes=temporary, source=INDEX_PUT))
    assert len(steps) == sorts + 4
    return steps


def _index(nbytes: int, source: str, until: int = -1) -> Scratch:
    return Scratch(bytes=nbytes, source=source, until=until)


def embedding_dense_backward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Above 3,072 indices: sort them, cut each row's segment into parts of ten, sum the parts in float."""
    arguments = Arguments(func, args, kwargs)
    grad, indices = arguments.get("grad_output"), arguments.get("indices")
    n, size = indices.numel(), indices.element_size()
    by_frequency = bool(arguments.get("scale_grad_by_freq", False))
    if n <= SMALL_EMBEDDING and not by_frequency:
        return ()
    rows, width = out.shape
    segments = min(n, rows)
    parts = n // ROWS_PER_THREAD + segments
    steps = [_index_before(n * size), _index_before(n * size), _index_before(n * size, until=4)]
    temporary = cub.radix_sort_pairs_bytes(n, size, size, 8 * size)
    steps.append(Scratch(bytes=temporary, source=EMBEDDING, estimated=True, before=True, until=4))
    if by_frequency:
        steps.append(_index_before(n * size))

    def add(nbytes: int, *, estimated: bool = False, brief: bool = False) -> None:
        until = len(steps) + 1 if brief else -1
        steps.append(Scratch(bytes=nbytes, source=EMBEDDING, estimated=estimated, until=until))

    add(n * size)  # segment offsets
    add(8)
    add(cub.select_bytes(n), estimated=True, brief=True)
    add(segments * size)
    add(segments * size)
    add(cub.scan_bytes(segments, size), estimated=True, brief=True)
    add(8)
    add(parts * size)
    for nbytes in _partial_sums(grad, rows, width, segments, parts, size, target):
        add(nbytes)
    return steps


def _index_before(nbytes: int, until: int = -1) -> Scratch:
    return Scratch(bytes=nbytes, source=EMBEDDING, before=True, until=until)


def _partial_sums(
    grad: torch.Tensor, rows: int, width: int, segments: int, parts: int, index_size: int, target: Target
) -> tuple[int, ...]:
    """The float buffer of the parts; or, with few busy rows, atomics into a float copy (torch 2.11, pytorch#172454)."""
    low = grad.dtype in (torch.float16, torch.bfloat16)
    warped = -(-width // 32) * 32
    blocks = -(-segments * warped // min(warped, 1024))
    atomics = target.torch_version >= (2, 11) and blocks < target.sm_count * MOST_ATOMIC_BLOCKS and parts > blocks * 4
    if atomics and not torch.are_deterministic_algorithms_enabled():
        return (parts * index_size, rows * width * 4) if low else (parts * index_size,)
    return (parts * width * (4 if low else grad.element_size()),)


def sort(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    x = args[0]
    if not x.dim():
        return ()
    arguments = Arguments(func, args, kwargs)
    dim = arguments.get("dim", -1)
    if x.shape[dim] <= SMALL_SORT:
        return ()
    n = x.numel()
    copy = () if x.stride(dim) == 1 else (Scratch(bytes=n * x.element_size(), source=SORT, estimated=True),)
    return (
        *copy,
        Scratch(bytes=8 * n, source=SORT, estimated=True),
        Scratch(
            bytes=cub.radix_sort_pairs_bytes(n, x.element_size(), 8, 8 * x.element_size()), source=SORT, estimated=True
        ),
    )


def scan(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """cumsum and cumprod: a cast copy where the result is wider, and cub's states for a whole-tensor scan."""
    x = args[0]
    dim = Arguments(func, args, kwargs).get("dim", 0)
    steps = []
    if x.dtype is not out.dtype:
        steps.append(Scratch(bytes=x.numel() * out.element_size(), source="cumsum casts its input (ReduceOps.cpp)"))
    if x.numel() and x.numel() == (x.shape[dim] if x.dim() else 1):
        temporary = cub.scan_bytes(x.numel(), out.element_size())
        steps.append(Scratch(bytes=temporary, source=SCAN, estimated=x.numel() > cub.SCAN_TILE))
    return steps


def topk(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Only where few long rows are spread over blocks (`should_use_multiblock`): digit counts per block and pass."""
    x = args[0]
    if not x.dim() or not x.numel():
        return ()
    row = x.shape[Arguments(func, args, kwargs).get("dim", -1)]
    rows = x.numel() // row
    limits = ((20, 20000), (40, 10000), (80, 8000), (200, 5000), (800, 3000), (4000, 800))
    if row < next((size for most, size in limits if rows <= most), 400):
        return ()
    threads, per_sm = 256, 65536 // (40 * 256)  # 40 registers a thread
    items = max(4, min(64, -(-x.numel() // (target.sm_count * per_sm * threads))))
    blocks = rows * -(-row // (items * threads))
    size = x.element_size()
    sizes = (rows * size, rows * 4, rows * 4, rows * max(4, size), blocks * 256 * 2, blocks * 4, blocks * 4)
    steps = [Scratch(bytes=nbytes, source=TOPK) for nbytes in sizes]
    return [*steps, Scratch(bytes=cub.scan_bytes(blocks, 4), source=TOPK, estimated=True)]


def nonzero(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """A count, cub's reduction before the result, cub's selection after it (ATen/native/cuda/Nonzero.cu)."""
    x = args[0]
    source = "nonzero_cuda_out_impl (ATen/native/cuda/Nonzero.cu; measured: 767 and 17,663 bytes)"
    copy = () if x.is_contiguous() else (Scratch(bytes=x.numel() * x.element_size(), source=source, before=True),)
    n = x.numel()
    start = len(copy)
    return (
        *copy,
        Scratch(bytes=4, source=source, before=True),
        Scratch(bytes=cub.reduce_bytes(n, target.sm_count), source=source, before=True, until=start + 2),
        Scratch(bytes=cub.select_bytes(n), source=source, estimated=n > cub.SELECT_TILE),
    )


def unique(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """A sorted copy and its order (ATen/native/cuda/Unique.cu, UniqueCub.cu); cub's own buffers count as one more."""
    x = args[0]
    source = "sort inside unique (ATen/native/cuda/Unique.cu)"
    sizes = (x.numel() * x.element_size(), x.numel() * 8, x.numel() * 8)
    return [Scratch(bytes=nbytes, source=source, estimated=True) for nbytes in sizes if nbytes]


def equal(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """`(a == b).all().item()`: a boolean per element, and one (ATen/native/cuda/Equal.cpp; measured)."""
    if not args[0].numel() or args[0].shape != args[1].shape:
        return ()
    source = "cuda_equal (ATen/native/cuda/Equal.cpp; measured in recordings)"
    return [Scratch(bytes=args[0].numel(), source=source), Scratch(bytes=1, source=source)]


ESTIMATORS = {
    _aten.index_put.default: index_put,
    _aten.index_put_.default: index_put,
    _aten._index_put_impl_.default: index_put,
    _aten._unsafe_index_put.default: index_put,
    _aten.embedding_dense_backward.default: embedding_dense_backward,
    _aten.sort.default: sort,
    _aten.sort.stable: sort,
    _aten.cumsum.default: scan,
    _aten.cumprod.default: scan,
    _aten.topk.default: topk,
    _aten.nonzero.default: nonzero,
    _aten._unique2.default: unique,
    _aten.unique_dim.default: unique,
    _aten.unique_consecutive.default: unique,
    _aten.equal.default: equal,
}
