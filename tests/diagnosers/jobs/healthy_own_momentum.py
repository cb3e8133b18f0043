import torch
import torch.nn as nn

m = nn.Sequential(*[q for _ in range(6) for q in (nn.Linear(1024, 1024), nn.ReLU())]).cuda()
mom = [torch.zeros_like(p) for p in m.parameters()]
for _ in range(5):
    loss = m(torch.randn(2048, 1024, device="cuda")).pow(2).mean()
    m.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p, b in zip(m.parameters(), mom, strict=False):
            b.mul_(0.9).add_(p.grad)
            p.sub_(0.1 * b)
