"""C06: weights, gradients and two moments in bfloat16, and foreach's temporary."""

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(24)]).bfloat16().cuda()
optimizer = torch.optim.Adam(model.parameters(), foreach=True)
for _ in range(3):
    model(torch.randn(16, 2048, device="cuda", dtype=torch.bfloat16)).float().sum().backward()
    optimizer.step()  # here
    optimizer.zero_grad()
