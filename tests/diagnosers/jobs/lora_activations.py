"""C19: LoRA without checkpointing keeps the activations of the whole frozen model."""

import torch
import torch.nn as nn


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(512, 512).requires_grad_(False)
        self.down, self.up = nn.Linear(512, 8, bias=False), nn.Linear(8, 512, bias=False)

    def forward(self, x):
        return torch.nn.functional.gelu(self.base(x) + self.up(self.down(x)))  # here


model = nn.Sequential(*[Adapted() for _ in range(24)]).cuda()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(3):
    model(torch.randn(16384, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
