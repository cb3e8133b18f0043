"""What the fused attention kernels allocate beside their outputs; sizes in bytes.

flash: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (read). memory-efficient:
attention.cu and attention_backward.cu (read), its backward workspace from mem_eff_attention/kernel_backward.h. cuDNN is
closed: its workspace is taken to be the float accumulator that any backward without atomics in half needs.
"""

from collections.abc import Sequence
from typing import Any

import torch

from .reduction_scratch import kernel_scratch
from .scratch import Args, Arguments, Kwargs, Scratch, Target, contiguous_strides

FLASH = "flash attention (transformers/cuda/flash_attn/flash_api.cpp)"
EFFICIENT = "memory-efficient attention (transformers/cuda/attention_backward.cu)"
EFFICIENT_WORKSPACE = "memory-efficient attention backward workspace (mem_eff_attention/kernel_backward.h)"
CUDNN = "cuDNN attention backward workspace: float dQ and one float per row are assumed"
_aten = torch.ops.aten


def flash_forward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Short queries over long keys are split over blocks, with a float partial result per split."""
    arguments = Arguments(func, args, kwargs)
    query, key = arguments.get("query"), arguments.get("key")
    if arguments.get("dropout_p", 0.0):
        return ()
    batch, heads, queries, size = query.shape
    if queries == 1 and heads > key.shape[1]:
        heads, queries = key.shape[1], heads // key.shape[1]
    block = 256 if size <= 64 else 128 if size <= 128 else 64
    splits = num_splits(batch * heads * -(-queries // 64), 2 * target.sm_count, -(-key.shape[2] // block))
    if splits <= 1:
        return ()
    rows = splits * batch * heads * queries
    return (
        Scratch(bytes=4 * rows, source=FLASH),
        Scratch(bytes=4 * rows * _rounded_size(size), source=FLASH),
    )


def num_splits(blocks: int, slots: int, key_blocks: int, most: int = 128) -> int:
    """num_splits_heuristic: the fewest splits within 85 % of the best use of the SMs."""
    if blocks >= 0.8 * slots:
        return 1
    most = min(most, slots, key_blocks)

    def efficiency(splits: int) -> float:
        if splits > 1 and -(-key_blocks // splits) == -(-key_blocks // (splits - 1)):
            return 0.0
        waves = blocks * splits / slots
        return waves / -(-blocks * splits // slots)

    efficiencies = [efficiency(splits) for splits in range(1, most + 1)]
    best = max(efficiencies, default=0.0)
    return next((i for i, e in enumerate(efficiencies, 1) if e and e >= 0.85 * best), 1)


def flash_backward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Copies of outputs not laid out (batch, sequence, head, size); row sums; float dQ; wide dK and dV of GQA."""
    arguments = Arguments(func, args, kwargs)
    query, key = arguments.get("query"), arguments.get("key")
    steps = [
        Scratch(bytes=t.numel() * t.element_size(), source=FLASH, before=True)
        for t in (arguments.get("grad_out"), arguments.get("out"))
        if not t.transpose(1, 2).is_contiguous()
    ]
    batch, heads, queries, size = query.shape
    rows = batch * heads * (-(-queries // 128) * 128)
    steps.append(Scratch(bytes=4 * rows, source=FLASH))
    copies = -(-target.sm_count // (batch * heads)) if torch.are_deterministic_algorithms_enabled() else 1
    steps.append(Scratch(bytes=4 * rows * _rounded_size(size) * copies, source=FLASH))
    kv_heads, keys = key.shape[1], key.shape[2]
    if kv_heads != heads:
        wide = batch * keys * heads * size
        steps += [Scratch(bytes=wide * query.element_size(), source=FLASH) for _ in range(2)]
        shape = (batch, keys, kv_heads, heads // kv_heads, size)
        stand_in = torch.empty_strided(shape, contiguous_strides(shape), dtype=query.dtype, device="meta")
        steps += kernel_scratch(stand_in, (3,), 4, target)
    return steps


def _rounded_size(size: int) -> int:
    step = 32 if size <= 128 else 64
    return -(-size // step) * step


def efficient_forward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """Heads wider than 128 accumulate in global memory, in float."""
    value = Arguments(func, args, kwargs).get("value")
    result = out[0]
    if value.shape[-1] <= 128 or result.dtype is torch.float32:
        return ()
    return (Scratch(bytes=4 * result.numel(), source=EFFICIENT),)


def efficient_backward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    """A contiguous gradient; row sums (in half one kernel, in float three tensors); in half a float dQ."""
    arguments = Arguments(func, args, kwargs)
    query = arguments.get("query")
    grad = arguments.get("grad_out_") if arguments.get("grad_out_") is not None else arguments.get("grad_out")
    steps = []
    if not grad.transpose(1, 2).is_contiguous():
        steps.append(Scratch(bytes=grad.numel() * grad.element_size(), source=EFFICIENT, before=True))
    batch, heads, queries, size = query.shape
    sums = 4 * batch * heads * queries
    if query.dtype is torch.float32:
        # each freed once the next is made: the product, its sum, the sum laid out by head
        start = len(steps)
        steps.append(Scratch(bytes=4 * grad.numel(), source=EFFICIENT, until=start + 3))
        steps.append(Scratch(bytes=sums, source=EFFICIENT, until=start + 3))
        steps.append(Scratch(bytes=sums, source=EFFICIENT))
        return steps
    steps.append(Scratch(bytes=sums, source=EFFICIENT))
    workspace = 4 * batch * heads * (-(-queries // 64) * 64) * (-(-size // 32) * 32)
    steps.append(Scratch(bytes=workspace, source=EFFICIENT_WORKSPACE, estimated=True))
    return steps


def cudnn_backward(func: Any, args: Args, kwargs: Kwargs, out: Any, target: Target) -> Sequence[Scratch]:
    query = Arguments(func, args, kwargs).get("query")
    rows = query.numel() // query.shape[-1]
    return (Scratch(bytes=4 * (query.numel() + rows), source=CUDNN, estimated=True),)


ESTIMATORS = {
    _aten._scaled_dot_product_flash_attention.default: flash_forward,
    _aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
    _aten._scaled_dot_product_efficient_attention.default: efficient_forward,
    _aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
    _aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_backward,
}
