import torch
import torch.nn as nn

m = nn.Sequential(*[q for _ in range(8) for q in (nn.Linear(1024, 1024, bias=False), nn.GELU())]).bfloat16().cuda()
master = [p.detach().clone().float() for p in m.parameters()]
for q in master:
    q.requires_grad_(True)
opt = torch.optim.AdamW(master)
for _ in range(4):
    m(torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)).float().pow(2).mean().backward()
    for q, p in zip(master, m.parameters(), strict=False):
        q.grad = p.grad.float()
        p.grad = None
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for q, p in zip(master, m.parameters(), strict=False):
            p.copy_(q)
