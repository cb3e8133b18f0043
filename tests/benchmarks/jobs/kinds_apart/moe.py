import torch
import torch.nn as nn
import torch.nn.functional as F


class MoE(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.r = nn.Linear(d, n)
        self.e = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n))

    def forward(self, x):
        p = self.r(x).softmax(-1)
        out = torch.zeros_like(x)
        for i, e in enumerate(self.e):
            out = out + p[..., i : i + 1] * e(x)
        return out


class L(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.a = nn.MultiheadAttention(d, 8, batch_first=True)
        self.m = nn.LayerNorm(d)
        self.f = MoE(d, 4)

    def forward(self, x):
        y = self.n(x)
        x = x + self.a(y, y, y, need_weights=False)[0]
        return x + self.f(self.m(x))


m = nn.Sequential(nn.Embedding(10000, 512), *[L(512) for _ in range(4)], nn.Linear(512, 10000)).cuda()
opt = torch.optim.AdamW(m.parameters(), 1e-3, amsgrad=True)
for _i in range(4):
    x = torch.randint(0, 10000, (8, 256)).cuda()
    loss = F.cross_entropy(m(x[:, :-1]).transpose(1, 2), x[:, 1:])
    loss.backward()
    opt.step()
    opt.zero_grad()
