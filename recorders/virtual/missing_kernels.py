"""CUDA operations without a meta kernel that need no file of their own: fused optimizers, cuDNN weights.

* `_fused_sgd_`, `_fused_adagrad_`, and the forms with a tensor as learning rate, work in place on lists of tensors and
  allocate nothing (aten/src/ATen/native/cuda/FusedSgdKernel.cu and its siblings).
* `_cudnn_rnn_flatten_weight` copies all weights of a RNN into one buffer, of which they become views.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch._prims.rng_prims
from torch.backends.cudnn import rnn

from .patching import patches
from .private import has_kernel_for
from .storages import is_virtual

if TYPE_CHECKING:
    from .session import Session

_FUSED = ("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_")
_RNN_MODES = SimpleNamespace(rnn_relu=0, rnn_tanh=1, lstm=2, gru=3)  # cudnnRNNMode_t
_GATES = {_RNN_MODES.lstm: 4, _RNN_MODES.gru: 3}  # plain RNNs 1


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


def _dtensor_random(tracker: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`run_dtensor_rng_op(start, end, op, ...)`: the operation itself; the random state holds no values here."""
    _, _, op, *operands = args
    return tracker.reentered(op, tuple(operands), kwargs)


def _flatten_weight(original: Callable[..., Any]) -> Callable[..., Any]:
    def flatten(
        weights: Sequence[torch.Tensor],
        weight_stride0: int,
        input_size: int,
        mode: int,
        hidden_size: int,
        proj_size: int,
        num_layers: int,
        batch_first: bool,
        bidirectional: bool,
    ) -> Any:
        if not is_virtual(weights[0]):
            sizes = (input_size, mode, hidden_size, proj_size, num_layers)
            return original(weights, weight_stride0, *sizes, batch_first, bidirectional)
        total = sum(weight.numel() for weight in weights)
        if weight_stride0 in (2, 3) and not any(weight.dim() == 1 for weight in weights):
            # cuDNN keeps room for both biases of every gate, whether the module has them or not
            total += num_layers * (2 if bidirectional else 1) * 2 * _GATES.get(mode, 1) * hidden_size
        buffer = torch.empty(total, dtype=weights[0].dtype, device=weights[0].device)
        offset = 0
        for weight in weights:
            weight.data = buffer[offset : offset + weight.numel()].view(weight.shape)
            offset += weight.numel()
        return buffer

    return flatten


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The handlers and the cuDNN functions for the time of the block."""
    operations = _without_meta_kernel()
    cudnn_globals = torch.backends.cudnn.is_acceptable.__globals__
    with patches() as held:
        for op in operations:
            held.item(session.tracker.handlers, op, _in_place)
        random_op = getattr(torch._prims.rng_prims, "run_dtensor_rng_op", None)  # torch 2.13 and later
        if random_op is not None:
            held.item(session.tracker.handlers, random_op, _dtensor_random)
        held.item(cudnn_globals, "_init", lambda: True)
        held.item(rnn.get_cudnn_mode.__globals__, "_cudnn", SimpleNamespace(RNNMode=_RNN_MODES))
        functions: Any = torch
        held.set(functions, "_use_cudnn_rnn_flatten_weight", lambda: True)
        held.set(functions, "_cudnn_rnn_flatten_weight", _flatten_weight(functions._cudnn_rnn_flatten_weight))
        yield
