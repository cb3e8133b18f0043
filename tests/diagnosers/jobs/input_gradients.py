"""Inputs that require gradients: their gradients pile up in a list of adversarial examples."""

import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(4096, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(30):
    x = torch.randn(2048, 4096, device="cuda", requires_grad=True)  # here
    y = torch.randint(0, 10, (2048,), device="cuda")
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    opt.zero_grad()
    history.append(x)
