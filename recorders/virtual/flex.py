"""`flex_attention` as the kernel that inductor makes of it holds memory, and block masks made under torch.compile.

Scripts compile it; run eagerly it would materialise the scores. What the compiled call allocates is read in
torch/_inductor/kernel/flex/flex_attention.py: forward the output and, per query, the log-sum-exp and the largest score
in fp32; backward `delta` in fp32 and the gradients. In a script that never calls torch.compile it does run eagerly, on
a GPU as well, and its scores are seen here too.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from .patching import patches
from .private import flex_autocasts, flex_operator, flex_scores
from .storages import is_virtual

if TYPE_CHECKING:
    from .session import Session
    from .tracker import Tracker

EAGER = (
    "flex_attention ran without torch.compile: its scores were materialised, and its backward computed by autograd, "
    "which may hold one copy of them more or fewer than torch's own"
)
_BLOCK_MASK = ("torch.nn.attention.flex_attention", "create_block_mask")


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the operator, but for its tensors."""

    tracker: "Tracker"
    operator: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    score_mod: Callable[..., Any]
    block_mask: tuple[Any, ...]
    scale: float
    rest: tuple[Any, ...]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # through the dispatcher: selective checkpointing decides by operator
        return self.operator(*inputs, self.score_mod, self.block_mask, self.scale, *self.rest)


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The operator's call, which torch differentiates by tracing it on a GPU that is not there."""
    if flex_operator is None:
        yield
        return
    own_call = type(flex_operator).__call__

    def call(
        self: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Callable[..., Any],
        block_mask: tuple[Any, ...],
        scale: float,
        *rest: Any,
    ) -> Any:
        if not is_virtual(query):
            return own_call(self, query, key, value, score_mod, block_mask, scale, *rest)
        inputs = _autocast(query, key, value)
        made = _Call(session.tracker, partial(own_call, self), score_mod, block_mask, scale, rest)
        captured = tuple(_learned(score_mod, set()))
        if torch.is_grad_enabled() and any(each.requires_grad for each in (*inputs, *captured)):
            return _Attention.apply(made, *inputs, *captured)  # type: ignore[no-untyped-call]
        return made.forward(*inputs)

    with patches() as held, warnings.catch_warnings():
        # the report says it, and says it only of scripts that do not compile
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        held.set(type(flex_operator), "__call__", call)
        yield


def fused(args: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(output, log-sum-exp, largest score): what the compiled operator returns, and all that it allocates."""
    query, value = args[0], args[2]
    out = _in_order_of(query, (*query.shape[:-1], value.shape[-1]))
    lse, largest = (query.new_empty(query.shape[:-1], dtype=torch.float32) for _ in range(2))
    return out, lse, largest


def is_block_mask_maker(function: object) -> bool:
    return (getattr(function, "__module__", None), getattr(function, "__name__", None)) == _BLOCK_MASK


def compiled_block_mask(own: Callable[..., Any]) -> Callable[..., Any]:
    """`create_block_mask` as compiled: the blocks are counted without the dense mask of every query and key."""

    def create_block_mask(
        mask_mod: Any,
        B: int | None,  # noqa: N803  # torch's own names
        H: int | None,  # noqa: N803
        Q_LEN: int,  # noqa: N803
        KV_LEN: int,  # noqa: N803
        device: Any = None,
        *rest: Any,
        **kwargs: Any,
    ) -> Any:
        size = rest[0] if rest else kwargs.get("BLOCK_SIZE", 128)
        rows, columns = (size, size) if isinstance(size, int) else size
        whole = own(mask_mod, B, H, -(-Q_LEN // rows), -(-KV_LEN // columns), device, BLOCK_SIZE=1)
        return type(whole).from_kv_blocks(
            whole.kv_num_blocks,
            whole.kv_indices,
            whole.full_kv_num_blocks,
            whole.full_kv_indices,
            BLOCK_SIZE=(rows, columns),
            mask_mod=mask_mod,
            seq_lengths=(Q_LEN, KV_LEN),
        )

    return create_block_mask


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: _Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *captured: torch.Tensor
    ) -> Any:
        out, lse, largest = call.forward(query, key, value)
        ctx.call, ctx.fused = call, call.tracker.fusion is not None
        ctx.save_for_backward(query, key, value, out, lse, *captured)
        ctx.mark_non_differentiable(largest)
        ctx.set_materialize_grads(False)
        return out, lse, largest

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor, grad_lse: torch.Tensor | None, _: Any) -> Any:
        query, key, value, _out, _lse, *captured = ctx.saved_tensors
        if not ctx.fused:
            inputs = [each.detach().requires_grad_() for each in (query, key, value)]
            with torch.enable_grad():
                again = _dense(ctx.call, *inputs)
            return None, *torch.autograd.grad(again, [*inputs, *captured], grad_out, allow_unused=True)
        delta = query.new_empty(query.shape[:-1], dtype=torch.float32)
        if grad_lse is not None:
            delta = delta - grad_lse
        grads = [_in_order_of(each, (query.shape[0], *each.shape[1:])) for each in (query, key, value)]
        grads = [
            grad if grad.shape[0] == each.shape[0] else grad.sum(0, keepdim=True)
            for grad, each in zip(grads, (query, key, value), strict=True)
        ]
        # the kernel adds into a zeroed buffer for each captured tensor
        return None, *grads, *(torch.zeros_like(each) for each in captured)


def _dense(call: _Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    scores = flex_scores(query, key, value, call.score_mod, call.block_mask, call.scale, {})[1]
    shares: torch.Tensor = torch.ops.aten._safe_softmax.default(scores, -1)
    return shares.to(query.dtype) @ value


def _in_order_of(like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Dense, of `shape`, its dimensions in memory in the order of `like`'s."""
    of = like.stride()
    order = sorted(range(like.dim()), key=lambda dim: (-of[dim], dim))
    strides, step = [0] * like.dim(), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return like.new_empty_strided(shape, strides)


def _autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if not (flex_autocasts and is_virtual(tensors[0]) and torch.is_autocast_enabled("cuda")):
        return tensors
    dtype = torch.get_autocast_dtype("cuda")
    return tuple(each.to(dtype) if each.dtype is torch.float32 else each for each in tensors)


def _learned(function: object, seen: set[int]) -> Iterator[torch.Tensor]:
    """Tensors that a score function captured and that want gradients (a learned bias)."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, torch.Tensor):
        if function.requires_grad:
            yield function
    elif isinstance(function, partial):
        for each in (function.func, *function.args, *function.keywords.values()):
            yield from _learned(each, seen)
    elif isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            yield from _learned(_content(cell), seen)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # assigned later
        return None
