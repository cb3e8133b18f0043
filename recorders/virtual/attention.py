"""Which kernel `scaled_dot_product_attention` runs on the target GPU, and the call that runs it.

On `meta` torch always takes the math path, whose score matrix is quadratic in the sequence. The choice below is that of
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, for dense tensors; the call follows `scaled_dot_product_attention`
in aten/src/ATen/native/transformers/attention.cpp.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .private import open_composite, sdp_priority_order
from .scratch import Target

MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3  # at::SDPBackend
_DEFAULT_ORDER = (FLASH, EFFICIENT, MATH, CUDNN)
_HALF = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What `sdpa_kernel` and `torch.backends.cuda.enable_*_sdp` have set."""

    flash: bool = True
    efficient: bool = True
    math: bool = True
    cudnn: bool = True
    order: tuple[int, ...] = _DEFAULT_ORDER
    deterministic: bool = False


def current_switches() -> Switches:
    """As set in this process."""
    backends: Any = torch.backends.cuda
    return Switches(
        flash=backends.flash_sdp_enabled(),
        efficient=backends.mem_efficient_sdp_enabled(),
        math=backends.math_sdp_enabled(),
        cudnn=backends.cudnn_sdp_enabled(),
        order=tuple(sdp_priority_order()) or _DEFAULT_ORDER,
        deterministic=torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def prefers_cudnn(target: Target) -> bool:
    """cuDNN goes first on data-centre Hopper and Blackwell where torch's own cuDNN is 9.15.1 or newer.

    pytorch#162073 made it so in 2.9; the guard of pytorch#169849 turned it off in 2.10, whose wheels carry an older
    cuDNN, and 2.11 crossed it.
    """
    if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1":
        return False
    version = target.torch_version
    allowed = version == (2, 9) or (version >= (2, 11) and target.cudnn_version > 91500)
    return allowed and target.compute_capability in ((9, 0), (10, 0), (10, 3))


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
    training: bool,
    switches: Switches,
    target: Target,
) -> int | None:
    """The backend that torch would pick; None when every one that is switched on refuses (torch raises)."""
    order = switches.order
    if order[:4] == _DEFAULT_ORDER and prefers_cudnn(target):
        order = (CUDNN, FLASH, EFFICIENT, MATH)
    able = {
        FLASH: switches.flash and _flash(query, key, value, mask, dropout, is_causal, enable_gqa, training, target),
        EFFICIENT: switches.efficient and _efficient(query, key, value, enable_gqa, target),
        CUDNN: switches.cudnn
        and not switches.deterministic
        and _cudnn(query, key, value, dropout, enable_gqa, training, target),
        MATH: switches.math,
    }
    return next((backend for backend in order if able.get(backend)), None)


def _common(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gqa: bool, *, skip_singleton: bool) -> bool:
    """Four dimensions, one dtype, matching batches and heads, no empty sequence, last stride 1."""
    if not (q.dim() == k.dim() == v.dim() == 4 and q.dtype == k.dtype == v.dtype):
        return False
    if not (q.shape[0] == k.shape[0] == v.shape[0]):
        return False
    heads = q.shape[1], k.shape[1], v.shape[1]
    same = heads[0] == heads[1] == heads[2]
    if not same and not (gqa and heads[1] == heads[2] and heads[0] % heads[1] == 0):
        return False
    if 0 in (q.shape[2], k.shape[2]):
        return False
    return all(x.stride(-1) == 1 or (skip_singleton and x.shape[-1] == 1) for x in (q, k, v))


def _low_precision(q: torch.Tensor, target: Target) -> bool:
    return q.dtype in _HALF if target.major >= 8 else q.dtype is torch.float16


def _flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    gqa: bool,
    training: bool,
    target: Target,
) -> bool:
    if mask is not None or not (8, 0) <= target.compute_capability <= (12, 1):
        return False
    if not _common(q, k, v, gqa, skip_singleton=True) or not _low_precision(q, target):
        return False
    size = q.shape[-1]
    if size > 256 or size != k.shape[-1] or size != v.shape[-1]:
        return False
    small_shared_memory = (8, 6) <= target.compute_capability <= (8, 9) or target.major == 12
    if training and small_shared_memory and not (size <= 192 or (dropout == 0 and size > 224)):
        return False
    return not (is_causal and q.shape[2] != k.shape[2])


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gqa: bool, target: Target) -> bool:
    gqa = gqa and target.torch_version >= (2, 14)  # pytorch#191085
    if not _common(q, k, v, gqa, skip_singleton=False):
        return False
    allowed = (torch.float16, torch.float32) + ((torch.bfloat16,) if target.major >= 8 else ())
    if q.dtype not in allowed:
        return False
    half = q.dtype in _HALF
    alignment = 4 if target.major >= 8 else 1
    if target.major >= 8 or (target.major >= 7 and half):
        alignment = max(alignment, 8 if half else 4)
    return q.shape[-1] == k.shape[-1] and q.shape[-1] % alignment == 0 and v.shape[-1] % alignment == 0


def _cudnn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float, gqa: bool, training: bool, target: Target
) -> bool:
    if not (8, 0) <= target.compute_capability <= (12, 1) or not _common(q, k, v, gqa, skip_singleton=True):
        return False
    if not _low_precision(q, target) or dropout * 16 != int(dropout * 16):
        return False
    qk, vv = q.shape[-1], v.shape[-1]
    wide = (target.compute_capability == (9, 0) or target.major == 10) and target.cudnn_version >= 91100
    limit = 192 if wide and (qk, vv) == (192, 128) else 128
    if max(qk, vv) > limit or qk % 8 or vv % 8 or max(q.shape[:2]) > 65535:
        return False
    return k.shape[2] != 1 and not (dropout and q.shape[2] == 1)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    target: Target,
) -> torch.Tensor:
    """`scaled_dot_product_attention` as CUDA runs it; math where torch would take math."""
    training = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    backend = choose(
        query,
        key,
        value,
        attn_mask,
        dropout=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        training=training,
        switches=current_switches(),
        target=target,
    )
    if backend is None:
        raise RuntimeError("No available kernel. Aborting execution.")
    if backend == MATH:
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    mask = additive(attn_mask, query.dtype)
    if backend == FLASH:
        return _run_flash(query, key, value, dropout_p, is_causal, scale)
    if backend == CUDNN:
        out: Sequence[Any] = _aten._scaled_dot_product_cudnn_attention.default(
            query, key, value, mask, training, dropout_p, is_causal, False, scale=scale
        )
        return out[0]  # type: ignore[no-any-return]
    if mask is not None:
        mask = _aligned(mask).expand(*query.shape[:3], key.shape[2])
    out = _aten._scaled_dot_product_efficient_attention.default(
        query, key, value, mask, training, dropout_p, is_causal, scale=scale
    )
    return out[0]  # type: ignore[no-any-return]


def _math(*args: Any, **kwargs: Any) -> torch.Tensor:
    """What torch does for tensors that no fused kernel takes, and for every meta tensor."""
    out: torch.Tensor = open_composite(_aten.scaled_dot_product_attention.default, *args, **kwargs)
    return out


def _run_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    size = query.shape[-1]
    pad = -size % 8
    if pad:  # pad_last_dim<8>
        query, key, value = (torch.constant_pad_nd(t, [0, pad]) for t in (query, key, value))
    scale = size**-0.5 if scale is None else scale
    out = _aten._scaled_dot_product_flash_attention.default(query, key, value, dropout, is_causal, False, scale=scale)[
        0
    ]
    return out[..., :size] if pad else out  # type: ignore[no-any-return]


def additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask becomes one of 0 and -inf in the query's dtype (convert_boolean_attn_mask)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.scalar_tensor(0.0, dtype=dtype, device=mask.device)
    return torch.where(mask.logical_not(), float("-inf"), zero)


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """Rows must start at multiples of 8 elements, else a padded copy is made (pad_bias)."""
    if mask.stride(-1) == 1 and all(stride % 8 == 0 for stride in mask.stride()[:-1]):
        return mask
    last = mask.shape[-1]
    return torch.constant_pad_nd(mask, [0, 8 - last % 8])[..., :last]
