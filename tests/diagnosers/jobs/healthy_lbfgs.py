import torch
import torch.nn as nn

m = nn.Sequential(*[q for _ in range(4) for q in (nn.Linear(512, 512), nn.Tanh())]).cuda()
opt = torch.optim.LBFGS(m.parameters(), max_iter=3)
x = torch.randn(4096, 512, device="cuda")


def closure():
    opt.zero_grad()
    l = m(x).pow(2).mean()
    l.backward()
    return l


for _ in range(3):
    opt.step(closure)
