import torch
import torch.nn as nn


class Muon(torch.optim.Optimizer):
    def __init__(self, ps, lr=0.02, momentum=0.95):
        super().__init__(ps, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if "buf" not in st:
                    st["buf"] = torch.zeros_like(p.grad)
                st["buf"].mul_(g["momentum"]).add_(p.grad)
                u = st["buf"].bfloat16()
                for _ in range(5):
                    a = u @ u.mT
                    b = -4.775 * a + 2.03 * a @ a
                    u = 3.44 * u + b @ u
                p.add_(u.to(p.dtype), alpha=-g["lr"])


m = nn.Sequential(*[q for _ in range(6) for q in (nn.Linear(1024, 1024, bias=False), nn.ReLU())]).cuda()
opt = Muon(m.parameters())
for _ in range(4):
    m(torch.randn(2048, 1024, device="cuda")).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
