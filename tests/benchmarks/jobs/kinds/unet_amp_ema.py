import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Res(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.n1 = nn.GroupNorm(8, i)
        self.c1 = nn.Conv2d(i, o, 3, padding=1)
        self.t = nn.Linear(t, o)
        self.n2 = nn.GroupNorm(8, o)
        self.c2 = nn.Conv2d(o, o, 3, padding=1)
        self.sk = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(t)[:, :, None, None]
        return self.c2(F.silu(self.n2(h))) + self.sk(x)


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n = nn.GroupNorm(8, c)
        self.qkv = nn.Conv1d(c, 3 * c, 1)
        self.o = nn.Conv1d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.n(x).view(b, c, h * w)).chunk(3, 1)
        a = torch.softmax(torch.einsum("bci,bcj->bij", q, k) * c**-0.5, -1)
        return x + self.o(torch.einsum("bij,bcj->bci", a, v)).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self, ch=96):
        super().__init__()
        t = 4 * ch
        self.te = nn.Sequential(nn.Linear(ch, t), nn.SiLU(), nn.Linear(t, t))
        self.ch = ch
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.d1 = Res(ch, ch, t)
        self.dn1 = nn.Conv2d(ch, ch, 3, 2, 1)
        self.d2 = Res(ch, 2 * ch, t)
        self.dn2 = nn.Conv2d(2 * ch, 2 * ch, 3, 2, 1)
        self.d3 = Res(2 * ch, 4 * ch, t)
        self.a = Attn(4 * ch)
        self.m = Res(4 * ch, 4 * ch, t)
        self.u3 = Res(8 * ch, 2 * ch, t)
        self.u2 = Res(4 * ch, ch, t)
        self.u1 = Res(2 * ch, ch, t)
        self.out = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, x, t):
        f = torch.exp(-torch.arange(self.ch // 2, device=x.device) / 10.0)[None] * t[:, None].float()
        t = self.te(torch.cat([f.sin(), f.cos()], -1))
        h1 = self.d1(self.inp(x), t)
        h2 = self.d2(self.dn1(h1), t)
        h3 = self.a(self.d3(self.dn2(h2), t))
        m = self.m(h3, t)
        u = self.u3(torch.cat([m, h3], 1), t)
        u = F.interpolate(u, scale_factor=2.0)
        u = self.u2(torch.cat([u, h2], 1), t)
        u = F.interpolate(u, scale_factor=2.0)
        return self.out(self.u1(torch.cat([u, h1], 1), t))


model = UNet().cuda()
ema = copy.deepcopy(model).eval().requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), 1e-4)
scaler = torch.amp.GradScaler("cuda")
betas = torch.linspace(1e-4, 0.02, 1000, device="cuda")
acp = torch.cumprod(1 - betas, 0)
for _step in range(5):
    x = torch.randn(16, 3, 64, 64).cuda(non_blocking=True)
    t = torch.randint(0, 1000, (16,), device="cuda")
    n = torch.randn_like(x)
    a = acp[t][:, None, None, None]
    xt = a.sqrt() * x + (1 - a).sqrt() * n
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(xt, t), n)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    with torch.no_grad():
        for p, q in zip(ema.parameters(), model.parameters(), strict=False):
            p.lerp_(q, 0.01)
