"""Losses without a meta kernel in torch: CTC, whose table of partial sums has a size by hand, and multi-margin."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .private import raw_is_meta
from .scratch import Args, Arguments, Kwargs, Scratch, Target
from .shadows import counted
from .storages import is_virtual

if TYPE_CHECKING:
    from .session import Session
    from .tracker import Tracker

_aten = torch.ops.aten
_FORWARD = (_aten._ctc_loss.default, _aten._ctc_loss.Tensor)
_BACKWARD = (_aten._ctc_loss_backward.default, _aten._ctc_loss_backward.Tensor)
CTC = "ctc_loss_backward_gpu_template (ATen/native/cuda/LossCTC.cu)"


def longest(lengths: Any, targets: torch.Tensor) -> int:
    """The longest target; of padded targets whose lengths nobody knows, their width."""
    if not isinstance(lengths, torch.Tensor):
        return max(lengths, default=0)
    known = counted(lengths)[0] if raw_is_meta(lengths) else lengths
    if known is None:
        return targets.shape[1] if targets.dim() > 1 else targets.numel()
    return int(known.max()) if known.numel() else 0


def ctc(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    """One loss per sample, and log-alpha of (batch, time, 2 x longest target + 1) that backward needs (LossCTC.cu)."""
    arguments = Arguments(func, args, kwargs)
    x = arguments.get("log_probs")
    if not is_virtual(x):
        return NotImplemented
    width = 2 * longest(arguments.get("target_lengths"), arguments.get("targets")) + 1
    steps, batch = (x.shape[0], x.shape[1]) if x.dim() == 3 else (x.shape[0], 1)

    def run(*_: Any, **__: Any) -> Any:
        losses = torch.empty(batch, dtype=x.dtype, device="meta")
        return losses, torch.empty(batch, steps, width, dtype=x.dtype, device="meta")

    return tracker.call(func, args, kwargs, run=run)


def ctc_backward(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    x = Arguments(func, args, kwargs).get("log_probs")
    return tracker.call(func, args, kwargs, run=lambda *_, **__: torch.empty_like(x))


def beta(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Backward's own table, as large as forward's."""
    alpha = Arguments(func, args, kwargs).get("log_alpha")
    return (Scratch(bytes=alpha.numel() * alpha.element_size(), source=CTC),)


ESTIMATORS = dict.fromkeys(_BACKWARD, beta)


def multi_margin_backward(tracker: "Tracker", func: Any, args: Args, kwargs: Kwargs) -> Any:
    return tracker.call(func, args, kwargs, run=lambda _, x, *__, **___: torch.empty_like(x))


@contextmanager
def install(session: "Session") -> Iterator[None]:
    added = {
        **dict.fromkeys(_FORWARD, ctc),
        **dict.fromkeys(_BACKWARD, ctc_backward),
        _aten.multi_margin_loss_backward.default: multi_margin_backward,
    }
    session.tracker.handlers.update(added)
    try:
        yield
    finally:
        for op in added:
            session.tracker.handlers.pop(op, None)
