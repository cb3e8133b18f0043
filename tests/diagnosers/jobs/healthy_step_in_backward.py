import torch
import torch.nn as nn

m = nn.Sequential(*[q for _ in range(8) for q in (nn.Linear(1024, 1024), nn.GELU())]).cuda()
opts = {p: torch.optim.AdamW([p], foreach=False) for p in m.parameters()}


def hook(p):
    opts[p].step()
    opts[p].zero_grad()


for p in m.parameters():
    p.register_post_accumulate_grad_hook(hook)
for _ in range(4):
    m(torch.randn(4096, 1024, device="cuda")).pow(2).mean().backward()
