"""What an older torch than the installed one does differently where the GPU's memory shows it: `--target-torch`.

The operations of a run are those of the installed torch. Where it is known that the target's differ, the target's are
made here; what differs inside kernels stands with them (`scratch.Target.torch_version`):

* below 2.12 `nn.init.trunc_normal_` worked in place, without masks (pytorch#174997);
* up to about 2.9 a full slice in `x[:, -1, :]` was an operation of its own, whose backward fills a tensor as large as
  `x` (ATen/TensorIndexing.h compared the slice's end for equality; recordings of 2025 have it, torch 2.13 has not);
* below 2.5 attention's math path computed in half precision, without copies in float.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import has_torch_function_unary

from .patching import Patches, patches
from .private import raw_getitem, raw_is_meta
from .scratch import installed_torch

if TYPE_CHECKING:
    from .session import Session

SLICES_SKIPPED = (2, 10)
TRUNC_NORMAL_BY_REJECTION = (2, 12)
MATH_ATTENTION_IN_FLOAT = (2, 5)
_END = sys.maxsize
_slice = torch.ops.aten.slice.Tensor


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The target's own ways for the time of the block; nothing where it is not older than the installed torch."""
    target, installed = session.target.torch_version, installed_torch()
    if target is None or target == installed:
        yield
        return
    _say(session, target, installed)
    allowed = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]  # torch has no annotation
    with patches() as held:
        _put_on(held, target, installed)
        if target < MATH_ATTENTION_IN_FLOAT:
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
        try:
            yield
        finally:
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)


def _say(session: "Session", target: tuple[int, int], installed: tuple[int, int]) -> None:
    here, there = (".".join(map(str, version)) for version in (installed, target))
    if target > installed:
        session.note(f"operations are those of torch {here}: what torch {there} does otherwise is not known here")
    else:
        session.note(f"operations are those of torch {here}, but for what is known to differ in torch {there}")


def _put_on(held: Patches, target: tuple[int, int], installed: tuple[int, int]) -> None:
    if target < SLICES_SKIPPED <= installed:
        held.set(torch.Tensor, "__getitem__", getitem)
    if target < TRUNC_NORMAL_BY_REJECTION <= installed:
        held.set(torch.nn.init, "_no_grad_trunc_normal_", trunc_normal)


def getitem(self: torch.Tensor, index: Any) -> torch.Tensor:
    """Indexing by a tuple in which slices span a whole dimension, item by item as applySlicing takes it."""
    if type(index) is not tuple or has_torch_function_unary(self) or not raw_is_meta(self) or not _plain(index):
        return raw_getitem(self, index)
    result, dim = self, 0
    indices: list[torch.Tensor | slice] = []
    named = sum(item is not None and item is not Ellipsis for item in index)
    for item in index:
        if isinstance(item, int):
            result = result.select(dim, item)
            continue
        if item is Ellipsis:
            skipped = self.dim() - named
            indices += [slice(None)] * skipped
            dim += skipped
            continue
        if isinstance(item, slice):
            result = _sliced(result, dim, item)
        elif item is None:
            result = result.unsqueeze(dim)
        indices.append(item if isinstance(item, torch.Tensor) else slice(None))
        dim += 1
    return raw_getitem(result, tuple(indices)) if any(isinstance(i, torch.Tensor) for i in indices) else result


def _plain(index: tuple[Any, ...]) -> bool:
    """There is a slice without an end, and nothing that stands for a number of dimensions other than one."""
    return any(isinstance(i, slice) and i.stop is None for i in index) and all(
        i is None
        or i is Ellipsis
        or type(i) in (int, slice)
        or (isinstance(i, torch.Tensor) and i.dtype not in (torch.bool, torch.uint8) and i.dim() > 0)
        for i in index
    )


def _sliced(tensor: torch.Tensor, dim: int, item: slice) -> torch.Tensor:
    start, step = 0 if item.start is None else item.start, 1 if item.step is None else item.step
    whole = item.stop is None and start == 0 and step == 1
    return _slice(tensor, dim, 0, _END) if whole else raw_getitem(tensor, (*[slice(None)] * dim, item))


def trunc_normal(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """By the inverse of the distribution function, in place."""
    with torch.no_grad():
        lower, upper = (math.erf((bound - mean) / (std * 2**0.5)) for bound in (a, b))
        tensor.uniform_(lower, upper, generator=generator)
        return tensor.erfinv_().mul_(std * 2**0.5).add_(mean).clamp_(min=a, max=b)
