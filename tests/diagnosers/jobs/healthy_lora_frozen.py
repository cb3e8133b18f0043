import torch
import torch.nn as nn


class LoRA(nn.Module):
    def __init__(self, base, r=16):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.a = nn.Linear(base.in_features, r, bias=False)
        self.b = nn.Linear(r, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class B(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.LayerNorm(1024)
        self.u = LoRA(nn.Linear(1024, 4096))
        self.d = LoRA(nn.Linear(4096, 1024))

    def forward(self, x):
        return x + self.d(torch.relu(self.u(self.n(x))))


m = nn.Sequential(*[B() for _ in range(8)])
for n, p in m.named_parameters():
    p.requires_grad_(".a." in n or ".b." in n)
m = m.cuda()
opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad])
for _ in range(4):
    m(torch.randn(2, 512, 1024, device="cuda")).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
