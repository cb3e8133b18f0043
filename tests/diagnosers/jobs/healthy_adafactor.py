import torch
import torch.nn as nn

m = nn.Sequential(*[q for _ in range(8) for q in (nn.Linear(1024, 1024), nn.GELU())]).cuda()
opt = torch.optim.Adafactor(m.parameters())
for _ in range(4):
    m(torch.randn(2048, 1024, device="cuda")).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
