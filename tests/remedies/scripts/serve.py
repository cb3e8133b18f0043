"""Inference that forgets no_grad: `serve.py [BATCHES [keep] [no_grad]]`."""

import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.up = nn.Linear(512, 1024)
        self.down = nn.Linear(1024, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


torch.set_grad_enabled("no_grad" not in sys.argv)
model = nn.Sequential(*[Block() for _ in range(6)]).cuda()
kept = []
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
    out = model(torch.ones(4096, 512, device="cuda"))
    if "keep" in sys.argv:
        kept.append(out)
