"""flash-attn, xformers, apex and a Triton kernel, imported by a script where none of them is installed."""

import torch
import triton
import triton.language as tl
import xformers.ops as xops
from apex.normalization import FusedLayerNorm, FusedRMSNorm
from apex.optimizers import FusedAdam
from flash_attn import flash_attn_func, flash_attn_qkvpacked_func, flash_attn_varlen_func

B, T, H, D = 2, 256, 8, 64


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


q, k, v = (torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
before = torch.cuda.memory_allocated()
out = flash_attn_func(q, k, v, causal=True)
taken = torch.cuda.memory_allocated() - before
assert taken == 2 * B * T * H * D + 4 * B * H * T + 2 * 512, taken  # the output, logsumexp, seed and offset
assert out.shape == q.shape
out.sum().backward()
xops.memory_efficient_attention(q, k, v, attn_bias=xops.LowerTriangularMask()).sum().backward()
grouped = q.detach().view(B, T, 2, H // 2, D)
shared = k.detach()[:, :, :2, None].expand(B, T, 2, H // 2, D)
assert xops.memory_efficient_attention(grouped, shared, shared).shape == grouped.shape
assert xops.memory_efficient_attention(grouped, grouped, grouped).shape == grouped.shape
packed = torch.randn(100, H, D, device="cuda", dtype=torch.float16, requires_grad=True)
starts = torch.tensor([0, 60, 100], device="cuda", dtype=torch.int32)
flash_attn_varlen_func(packed, packed, packed, starts, starts, 60, 60).sum().backward()
flash_attn_qkvpacked_func(torch.randn(2, 16, 3, H, D, device="cuda", dtype=torch.float16))

model = torch.nn.Sequential(FusedLayerNorm(64), torch.nn.Linear(64, 64), FusedRMSNorm(64)).cuda().bfloat16()
optimizer = FusedAdam(model.parameters(), lr=1e-3)
model(torch.randn(4, 64, device="cuda", dtype=torch.bfloat16)).sum().backward()
optimizer.step()
optimizer.zero_grad()
assert all(state["exp_avg"].dtype is torch.float32 for state in optimizer.state.values())

y = torch.empty_like(packed)
torch.cuda.reset_peak_memory_stats()
double[lambda meta: (triton.cdiv(packed.numel(), meta["BLOCK"]),)](packed, y, packed.numel())
assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()

from flash_attn.bert_padding import unpad_input  # noqa: E402  (nobody taught it)
