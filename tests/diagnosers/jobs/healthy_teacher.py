import copy

import torch
import torch.nn as nn

student = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(1024, 1024), nn.ReLU())]).cuda()
teacher = copy.deepcopy(student).eval().requires_grad_(False)
opt = torch.optim.AdamW(student.parameters())
for _ in range(4):
    x = torch.randn(2048, 1024).cuda()
    with torch.no_grad():
        t = teacher(x)
    loss = nn.functional.mse_loss(student(x), t)
    loss.backward()
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for p, q in zip(teacher.parameters(), student.parameters(), strict=False):
            p.mul_(0.99).add_(q, alpha=0.01)
