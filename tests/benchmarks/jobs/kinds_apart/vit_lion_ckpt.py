import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["exp_avg"] = torch.zeros_like(p)
                m = st["exp_avg"]
                u = m.clone().mul_(0.9).add(p.grad, alpha=0.1).sign_()
                p.add_(u, alpha=-g["lr"])
                m.mul_(0.99).add_(p.grad, alpha=0.01)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Conv2d(3, 768, 16, 16)
        self.pos = nn.Parameter(torch.zeros(1, 196, 768))
        self.bl = nn.ModuleList(
            nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu", norm_first=True)
            for _ in range(12)
        )
        self.h = nn.Linear(768, 1000)

    def forward(self, x):
        x = self.p(x).flatten(2).transpose(1, 2) + self.pos
        for b in self.bl:
            x = checkpoint(b, x, use_reentrant=False)
        return self.h(x.mean(1))


m = ViT().cuda()
opt = Lion(m.parameters())
for _i in range(4):
    x = torch.randn(64, 3, 224, 224, device="cuda")
    y = torch.randint(0, 1000, (64,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(m(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
