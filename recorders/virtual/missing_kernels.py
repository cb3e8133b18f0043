"""CUDA operations without a meta kernel that need no file of their own: fused optimizers.

`_fused_sgd_`, `_fused_adagrad_`, and the forms with a tensor as learning rate, work in place on lists of tensors and
allocate nothing (aten/src/ATen/native/cuda/FusedSgdKernel.cu and its siblings).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .patching import patches
from .private import has_kernel_for

if TYPE_CHECKING:
    from .session import Session

_FUSED = ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")


def _in_place(tracker: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tracker.operations += 1


def _without_meta_kernel() -> list[Any]:
    found = []
    for name in _FUSED:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if op._schema.returns == [] and not has_kernel_for(op.name(), "Meta"):
                found.append(op)
    return found


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The handlers, and cuDNN's own answer that it is there, for the time of the block."""
    operations = _without_meta_kernel()
    with patches() as held:
        for op in operations:
            held.item(session.tracker.handlers, op, _in_place)
        held.item(torch.backends.cudnn.is_acceptable.__globals__, "_init", lambda: True)
        yield
