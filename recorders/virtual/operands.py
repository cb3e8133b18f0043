"""Where an operation's operands are, and what CUDA would say to a mixture of devices.

The rules of CUDA: operands on one device; a CPU tensor with no dimension may come along as a number; copies and
indexing may cross. A mixture is an error in the script, and raised in CUDA's own words.
"""

from typing import Any

import torch

from .private import raw_is_meta, raw_storage
from .storages import RECORDS, Kind, inside, state

# Operations that take tensors of several devices: copies, indexing by host indices, and those whose schema wants
# lengths or positions on the host.
CROSSING = frozenset(
    (
        "aten::copy_",
        "aten::_copy_from",
        "aten::_to_copy",
        "aten::_foreach_copy_",
        "aten::index.Tensor",
        "aten::_unsafe_index.Tensor",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::_unsafe_index_put",
        "aten::_pack_padded_sequence",
        "aten::_pack_padded_sequence_backward",
        "aten::_pad_packed_sequence",
        "aten::_cudnn_rnn",
        "aten::_cudnn_rnn_backward",
        "aten::lstm.data",
        "aten::gru.data",
        "aten::rnn_tanh.data",
        "aten::rnn_relu.data",
        "aten::_ctc_loss",
        "aten::_ctc_loss.Tensor",
        "aten::_ctc_loss_backward",
        "aten::_ctc_loss_backward.Tensor",
        "aten::_use_cudnn_ctc_loss.Tensor",
        "aten::_cudnn_ctc_loss.Tensor",
        "aten::tensor_split.tensor_indices_or_sections",
        "aten::set_.source_Tensor",
        "aten::_scaled_dot_product_flash_attention_backward",
        "aten::_flash_attention_backward",
        "aten::_scaled_dot_product_efficient_attention_backward",
        "aten::_efficient_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention_backward",
    )
)


_ALL_OF_A_LIST = 8


class Operands:
    """What one pass over the arguments found; one is made for each operation, so what was not found costs nothing."""

    index = -1  # of the virtual GPU of the first CUDA operand
    second = -1  # of another one, -1 = none
    host = False  # a virtual host operand with dimensions
    meta = False  # a true meta operand
    real = False  # a real tensor with dimensions


def look(args: tuple[Any, ...] | list[Any], kwargs: dict[str, Any] | None, several: bool, found: Operands) -> Operands:
    """One pass; long lists (foreach) are judged by their first tensor. `several`: this process sees several GPUs."""
    plain = not (state.exotic or several)
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            if not raw_is_meta(value):
                found.real = found.real or value.dim() > 0
            elif plain:
                found.index = 0
            else:
                _look_at_virtual(value, found)
        elif type(value) in (list, tuple) and value and not isinstance(value[0], int):
            look(value if len(value) <= _ALL_OF_A_LIST else value[:1], None, several, found)
    return found


def _look_at_virtual(value: torch.Tensor, found: Operands) -> None:
    record = RECORDS.get(raw_storage(value)._cdata) if value.layout is torch.strided else None
    if record is None or record.kind is Kind.CUDA:
        index = 0 if record is None else record.index
        if found.index < 0:
            found.index = index
        elif index != found.index and value.dim():
            found.second = index
    elif record.kind is Kind.HOST:
        found.host = True
    else:
        found.meta = True


def placement(found: Operands, asked: torch.device | None, current: int) -> tuple[Kind | None, int]:
    """Where the outputs belong: (kind, device index); kind None = nothing virtual is involved.

    An explicit device wins, then any virtual CUDA operand, then virtual host, then true meta.
    """
    if asked is not None:
        if asked.type == "cuda":
            return Kind.CUDA, current if asked.index is None else asked.index
        if asked.type == "meta" and inside.true_meta:
            return Kind.META, 0
        if asked.type == "cpu":
            return None, 0
    if found.index >= 0:
        return Kind.CUDA, found.index
    if found.host:
        return Kind.HOST, 0
    if found.meta:
        return Kind.META, 0
    if asked is not None and asked.type == "meta":
        return Kind.CUDA, current  # a C++ composite made it from a virtual operand's options
    return None, 0


def mixed_devices(found: Operands, name: str) -> RuntimeError | None:
    """The error of CUDA for this mixture, None when there is nothing to complain about."""
    if name in CROSSING:
        return None
    if found.second >= 0:
        return RuntimeError(_mixture(found.index, f"cuda:{found.second}"))
    if found.real or found.host:
        return RuntimeError(_mixture(found.index, "cpu"))
    return None


def _mixture(index: int, other: str) -> str:
    return f"Expected all tensors to be on the same device, but found at least two devices, cuda:{index} and {other}!"
