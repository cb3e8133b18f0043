"""C05: the peak lies in step, in intermediates of the foreach implementation."""

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
for _ in range(2):
    x = torch.randn(8, 4096, device="cuda")
    model(x).sum().backward()
    optimizer.step()  # here
    optimizer.zero_grad()
