"""A training step, then an evaluation of larger batches that forgets no_grad."""

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


model = nn.Sequential(*[Block() for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(512, 512, device="cuda")).square().mean().backward()
optimizer.step()
optimizer.zero_grad()
model.eval()
for _ in range(3):
    best = model(torch.ones(4096, 512, device="cuda")).argmax(dim=-1)
