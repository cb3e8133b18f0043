"""C10: gradients of the last step are alive in the next forward."""

import torch
import torch.nn as nn

model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(1024, 1024, device="cuda")
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
