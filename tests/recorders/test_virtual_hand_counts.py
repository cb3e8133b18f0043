"""What a person can count for a GPT block: activations kept for backward, with checkpointing and without."""

import pytest
import torch
from oomdoc.recorders.virtual.session import Session
from torch import nn
from torch.nn import functional as F  # noqa: N812  # everyone's name for it
from torch.utils.checkpoint import checkpoint

B, T, C, H, DEPTH = 4, 256, 256, 8, 3


class Block(nn.Module):
    """As GPT-2's: layer norm, attention, layer norm, MLP of four times the width; no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.view(B, T, H, C // H).transpose(1, 2) for each in self.qkv(self.n1(x)).split(C, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(B, T, C))
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.n2(x))))
        return out


def requested() -> int:
    """Bytes that tensors asked for: a block may be larger, by what is too little to be split off."""
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_of_a_gpt_block_follow_the_formula(gpu: Session, dtype: torch.dtype) -> None:
    """16 tensors of B x T x C: norm 1, q, k, v, attention, residual, norm 2, 4 + 4 of the MLP, output; beside them
    mean and deviation of both norms per row, and logsumexp per head and row. Checkpointed: the block's input alone.
    """
    blocks = nn.ModuleList(Block() for _ in range(DEPTH)).to("cuda", dtype)
    kept = {}
    for checkpointed in (False, True):
        for _ in range(2):  # the handles' workspaces are there from the first pass on
            x = torch.randn(B, T, C, device="cuda", dtype=dtype, requires_grad=True)
            before = requested()
            y = x
            for block in blocks:
                y = checkpoint(block, y, use_reentrant=False) if checkpointed else block(y)
            kept[checkpointed] = requested() - before
            y.sum().backward()
            del x, y
            blocks.zero_grad()
    width = dtype.itemsize
    random_state = 0 if dtype is torch.float32 else 24  # flash keeps seed, offset and an unused number on the GPU
    block_bytes = 16 * width * B * T * C + 2 * 2 * 4 * B * T + 4 * B * H * T + random_state
    assert kept[False] == DEPTH * block_bytes
    assert kept[True] == DEPTH * width * B * T * C
