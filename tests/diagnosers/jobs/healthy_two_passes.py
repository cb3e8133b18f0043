import torch
import torch.nn as nn

m = nn.Sequential(*[q for _ in range(6) for q in (nn.Linear(1024, 1024), nn.ReLU())]).cuda()
opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
for _ in range(4):
    x = torch.randn(2048, 1024).cuda()
    m(x).pow(2).mean().backward()
    with torch.no_grad():
        eps = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in m.parameters()]
        for p, e in zip(m.parameters(), eps, strict=False):
            p.add_(e)
    opt.zero_grad()
    m(x).pow(2).mean().backward()
    with torch.no_grad():
        for p, e in zip(m.parameters(), eps, strict=False):
            p.sub_(e)
    opt.step()
    opt.zero_grad()
