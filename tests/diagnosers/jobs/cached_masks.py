"""lru_cache keeps a position table for every length that ever came."""

from functools import lru_cache

import torch
import torch.nn as nn


@lru_cache(maxsize=None)
def relative_positions(n):
    steps = torch.arange(n, device="cuda")
    return (steps[None, :] - steps[:, None]).clamp(-64, 64).float()  # here


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.scale = nn.Linear(128, 128), nn.Parameter(torch.ones(()))

    def forward(self, x):
        bias = relative_positions(x.shape[1])
        return self.lin(torch.softmax(self.scale * bias, -1) @ x)


model = Layer().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.randn(2, 1500 + 13 * step, 128).cuda()).mean().backward()
    opt.step()
    opt.zero_grad()
