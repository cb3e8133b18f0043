"""Which attention kernel runs, and what it saves, by GPU, torch version, dtype, head size, mask and switches."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from oomdoc.recorders.virtual.attention import CUDNN, EFFICIENT, FLASH, MATH, Switches, choose
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.scratch import Target
from oomdoc.recorders.virtual.session import Session, virtual_session
from torch.nn import functional as F  # noqa: N812  # everyone's name for it
from torch.nn.attention import SDPBackend, sdpa_kernel

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
A100 = Target(sm_count=108, threads_per_sm=2048, compute_capability=(8, 0), torch_version=(2, 13))
H100 = replace(A100, sm_count=132, compute_capability=(9, 0))
V100 = replace(A100, sm_count=80, compute_capability=(7, 0))
RTX4090 = replace(A100, sm_count=128, compute_capability=(8, 9))


def picked(
    target: Target,
    shape: tuple[int, int, int, int] = (2, 8, 128, 64),
    dtype: torch.dtype = BF16,
    *,
    kv_heads: int | None = None,
    keys: int | None = None,
    value_size: int | None = None,
    mask: bool = False,
    switches: Switches = Switches(),  # noqa: B008  # frozen
    **options: Any,
) -> int | None:
    batch, heads, queries, size = shape
    q = torch.empty(shape, dtype=dtype, device="meta")
    k = torch.empty(batch, kv_heads or heads, keys or queries, size, dtype=dtype, device="meta")
    v = torch.empty(*k.shape[:3], value_size or size, dtype=dtype, device="meta")
    attn_mask = torch.empty(queries, k.shape[2], dtype=torch.bool, device="meta") if mask else None
    settings = {"dropout": 0.0, "is_causal": False, "enable_gqa": False, "training": True} | options
    return choose(q, k, v, attn_mask, switches=switches, target=target, **settings)


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        (A100, {}, FLASH),
        (A100, {"dtype": F32}, EFFICIENT),
        (A100, {"dtype": torch.float64}, MATH),
        (A100, {"mask": True}, EFFICIENT),
        (A100, {"shape": (2, 8, 128, 256)}, FLASH),
        (A100, {"shape": (2, 8, 128, 264)}, EFFICIENT),
        (A100, {"shape": (2, 8, 128, 60), "mask": True}, MATH),
        (A100, {"value_size": 32}, EFFICIENT),
        (A100, {"kv_heads": 2}, MATH),
        (A100, {"kv_heads": 2, "enable_gqa": True}, FLASH),
        (A100, {"kv_heads": 2, "enable_gqa": True, "mask": True}, MATH),
        (A100, {"is_causal": True, "keys": 256}, EFFICIENT),
        (RTX4090, {"shape": (2, 8, 128, 208)}, EFFICIENT),
        (RTX4090, {"shape": (2, 8, 128, 208), "training": False}, FLASH),
        (V100, {"dtype": F16}, EFFICIENT),
        (V100, {}, MATH),
        (H100, {}, CUDNN),
        (H100, {"mask": True}, CUDNN),
        (H100, {"dtype": F32}, EFFICIENT),
        (H100, {"dropout": 0.1}, FLASH),
        (H100, {"shape": (2, 8, 128, 256)}, FLASH),
        (replace(H100, torch_version=(2, 8)), {}, FLASH),
        (replace(H100, torch_version=(2, 10)), {}, FLASH),
        (replace(A100, torch_version=(2, 14)), {"kv_heads": 2, "enable_gqa": True, "mask": True}, EFFICIENT),
    ],
)
def test_choice(target: Target, options: dict[str, Any], expected: int) -> None:
    """As sdp_utils.cpp decides for dense tensors."""
    assert picked(target, **options) == expected


def test_switches_decide() -> None:
    assert picked(A100, switches=Switches(flash=False)) == EFFICIENT
    assert picked(A100, switches=Switches(flash=False, efficient=False)) == MATH
    assert picked(A100, switches=Switches(flash=False, efficient=False, math=False, cudnn=False)) is None
    assert picked(A100, switches=Switches(order=(CUDNN, FLASH, EFFICIENT, MATH))) == CUDNN
    assert picked(H100, switches=Switches(deterministic=True)) == FLASH


def qkv(*shape: int, dtype: torch.dtype = BF16, grad: bool = True) -> list[torch.Tensor]:
    return [torch.ones(shape, device="cuda", dtype=dtype, requires_grad=grad) for _ in range(3)]


def test_flash_saves_no_scores(gpu: Session) -> None:
    """Forward keeps the output, one float per row, and 24 bytes of random state: nothing quadratic."""
    tensors = qkv(1, 8, 2048, 64)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = F.scaled_dot_product_attention(*tensors, is_causal=True)
    kept = 8 * 2048 * 64 * 2 + 8 * 2048 * 4 + 2 * 512
    assert torch.cuda.memory_allocated() - before == kept
    assert torch.cuda.max_memory_allocated() - before == kept
    assert "FlashAttention" in type(out.grad_fn).__name__


def test_flash_backward_peak(gpu: Session) -> None:
    """dQ, dK, dV, a float dQ, row sums; and copies of gradient and output, which are head-major here."""
    tensors = qkv(1, 8, 2048, 64)
    out = F.scaled_dot_product_attention(*tensors)
    grad = torch.ones_like(out)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(out, tensors, grad, retain_graph=True)
    rows, each = 8 * 2048, 8 * 2048 * 64 * 2
    assert torch.cuda.max_memory_allocated() - before == 3 * each + 2 * each + rows * 64 * 4 + rows * 4


def test_efficient_random_state_is_on_the_host(gpu: Session) -> None:
    """A boolean mask becomes one of the query's dtype; seed and offset take no device memory."""
    tensors = qkv(1, 8, 256, 64)
    mask = torch.ones(256, 256, device="cuda", dtype=torch.bool)
    before = torch.cuda.memory_allocated()
    out = F.scaled_dot_product_attention(*tensors, attn_mask=mask)
    assert "EfficientAttention" in type(out.grad_fn).__name__
    assert torch.cuda.memory_allocated() - before == 8 * 256 * 64 * 2 + 8 * 256 * 4 + 256 * 256 * 2
    out.sum().backward()
    assert tensors[0].grad is not None


def test_inference_needs_no_row_sums(gpu: Session) -> None:
    tensors = qkv(1, 8, 256, 64, dtype=F32, grad=False)
    before = torch.cuda.memory_allocated()
    with torch.inference_mode():
        out = F.scaled_dot_product_attention(*tensors)
    assert torch.cuda.memory_allocated() - before == out.numel() * 4


def test_sdpa_kernel_context_is_obeyed(gpu: Session) -> None:
    tensors = qkv(1, 8, 256, 64)
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(*tensors)
    assert "Attention" not in type(out.grad_fn).__name__
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        out = F.scaled_dot_product_attention(*tensors)
    assert "EfficientAttention" in type(out.grad_fn).__name__


def test_odd_head_size_is_padded(gpu: Session) -> None:
    tensors = qkv(1, 2, 64, 60)
    out = F.scaled_dot_product_attention(*tensors)
    assert out.shape == (1, 2, 64, 60)
    assert "Slice" in type(out.grad_fn).__name__
    out.sum().backward()
    assert tensors[0].grad is not None
    assert tensors[0].grad.shape == (1, 2, 64, 60)


def test_cpu_attention_is_torchs_own(gpu: Session) -> None:
    q = torch.rand(1, 2, 8, 16)
    scores = (q @ q.transpose(-1, -2) / 4).softmax(-1)
    assert torch.allclose(F.scaled_dot_product_attention(q, q, q), scores @ q, atol=1e-5)


def test_hopper_takes_cudnn_with_grouped_heads_and_masks(card: GpuTarget) -> None:
    """Gradients of keys and values keep their own head count; the workspace of backward is named as an estimate."""
    with virtual_session(replace(card, compute_capability=(9, 0), sm_count=132)) as session:
        q = torch.ones(2, 8, 256, 64, device="cuda", dtype=BF16, requires_grad=True)
        kv = torch.ones(2, 2, 256, 64, device="cuda", dtype=BF16, requires_grad=True)
        out = F.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True)
        assert "Cudnn" in type(out.grad_fn).__name__
        out.sum().backward()
        assert kv.grad is not None
        assert kv.grad.shape == (2, 2, 256, 64)
        mask = torch.ones(256, 256, device="cuda", dtype=torch.bool)
        masked = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        assert "Cudnn" in type(masked.grad_fn).__name__
        assert any("cuDNN attention" in source for source in session.tracker.estimated)
