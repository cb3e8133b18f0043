import torch
import torch.nn as nn


class U(nn.Module):
    def __init__(self, ch=64):
        super().__init__()
        self.i = nn.Conv2d(4, ch, 3, 1, 1)
        self.d1 = nn.Conv2d(ch, 2 * ch, 3, 2, 1)
        self.d2 = nn.Conv2d(2 * ch, 4 * ch, 3, 2, 1)
        self.m = nn.Conv2d(4 * ch, 4 * ch, 3, 1, 1)
        self.u2 = nn.ConvTranspose2d(4 * ch, 2 * ch, 2, 2)
        self.u1 = nn.ConvTranspose2d(4 * ch, ch, 2, 2)
        self.o = nn.Conv2d(2 * ch, 4, 3, 1, 1)
        self.t = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 4 * ch))
        self.n = nn.GroupNorm(8, 4 * ch)

    def forward(self, x, t):
        a = nn.functional.silu(self.i(x))
        b = nn.functional.silu(self.d1(a))
        c = nn.functional.silu(self.d2(b))
        c = self.n(self.m(c) + self.t(t)[:, :, None, None])
        y = torch.cat([nn.functional.silu(self.u2(c)), b], 1)
        y = torch.cat([nn.functional.silu(self.u1(y)), a], 1)
        return self.o(y)


m = U().cuda()
opt = torch.optim.AdamW(m.parameters())
alphas = torch.linspace(0.99, 0.01, 1000).cuda()
for _ in range(4):
    x = torch.randn(16, 4, 64, 64).cuda()
    n = torch.randn_like(x)
    t = torch.randint(1000, (16,), device="cuda")
    a = alphas[t][:, None, None, None]
    noisy = a.sqrt() * x + (1 - a).sqrt() * n
    e = torch.randn(16, 128, device="cuda")
    loss = nn.functional.mse_loss(m(noisy, e), n)
    opt.zero_grad()
    loss.backward()
    opt.step()
