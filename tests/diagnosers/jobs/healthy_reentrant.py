import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class B(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))

    def forward(self, x):
        return x + self.f(x)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(1024, 1024)
        self.b = nn.ModuleList(B() for _ in range(6))

    def forward(self, x):
        x = self.inp(x)
        for b in self.b:
            x = checkpoint(b, x, use_reentrant=True)
        return x


m = M().cuda()
opt = torch.optim.AdamW(m.parameters())
for _ in range(4):
    m(torch.randn(4096, 1024, device="cuda")).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
