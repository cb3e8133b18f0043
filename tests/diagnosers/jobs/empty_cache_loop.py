"""empty_cache after every step does not help: the activations of one batch are too large."""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a, self.b = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))  # here


model = nn.Sequential(*[Block(512) for _ in range(12)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for size in (16384, 32768, 65536):
    out = model(torch.randn(size, 512, device="cuda"))
    out.pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.empty_cache()
