import torch
import torch.nn as nn

m = nn.Sequential(*[q for _ in range(8) for q in (nn.Linear(1024, 1024), nn.GELU())]).cuda()
cpu = [p.detach().cpu().clone().requires_grad_(True) for p in m.parameters()]
opt = torch.optim.AdamW(cpu)
for _ in range(4):
    m(torch.randn(4096, 1024, device="cuda")).pow(2).mean().backward()
    for c, p in zip(cpu, m.parameters(), strict=False):
        c.grad = p.grad.cpu()
        p.grad = None
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for c, p in zip(cpu, m.parameters(), strict=False):
            p.copy_(c)
