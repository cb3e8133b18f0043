"""flash-attn's and xformers' functions over torch's own flash and memory-efficient kernels.

Tensors are (batch, sequence, heads, head size); packed ones (total tokens, heads, head size). Both libraries allocate
the output, a logsumexp in float32 and the random state, and keep these for backward, as torch's kernels do
(csrc/flash_attn/flash_api.cpp of flash-attention, which torch carries a copy of).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

_aten = torch.ops.aten


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    *args: Any,
    return_attn_probs: bool = False,
    **kwargs: Any,
) -> Any:
    """The output, shaped as q; with `return_attn_probs` also logsumexp (batch, heads, sequence) and None."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    out, logsumexp, *_ = _aten._scaled_dot_product_flash_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout_p, causal, scale=softmax_scale
    )
    out = out.transpose(1, 2)
    return (out, logsumexp, None) if return_attn_probs else out


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *args, **kwargs)


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *args, **kwargs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    *args: Any,
    return_attn_probs: bool = False,
    **kwargs: Any,
) -> Any:
    """Sequences of several lengths, one behind the other."""
    out, logsumexp, *_ = _aten._flash_attention_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, causal, False, scale=softmax_scale
    )
    return (out, logsumexp, None) if return_attn_probs else out


def names() -> Mapping[str, object]:
    functions = (flash_attn_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func, flash_attn_varlen_func)
    return {each.__name__: each for each in functions} | {"__version__": "2.8.0"}


class LowerTriangularMask:
    """xformers.ops.LowerTriangularMask: causal, and no memory."""


def memory_efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    **kwargs: Any,
) -> torch.Tensor:
    """xformers.ops.memory_efficient_attention: 3 dimensions are one head, 5 have groups of heads."""
    shape = query.shape
    shared = query.dim() == 5 and key.stride(3) == value.stride(3) == 0  # one head of keys and values for a group
    if query.dim() == 5:
        query = query.flatten(2, 3)
        key, value = (each[:, :, :, 0] if shared else each.flatten(2, 3) for each in (key, value))
    heads = query.dim() == 4
    q, k, v = (each.transpose(1, 2) if heads else each.unsqueeze(1) for each in (query, key, value))
    causal = isinstance(attn_bias, LowerTriangularMask) or attn_bias is LowerTriangularMask
    mask = attn_bias if isinstance(attn_bias, torch.Tensor) else None
    out = scaled_dot_product_attention(q, k, v, mask, p, causal, scale=scale, enable_gqa=shared)
    return (out.transpose(1, 2) if heads else out.squeeze(1)).reshape(*shape[:-1], value.shape[-1])


def xformers_names() -> Mapping[str, object]:
    return {
        "memory_efficient_attention": memory_efficient_attention,
        "LowerTriangularMask": LowerTriangularMask,
    }
