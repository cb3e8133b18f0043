"""C25: a validation loss is summed with its graph."""

import torch
import torch.nn as nn

model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for _ in range(12):
    model(torch.randn(256, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    total = total + model(torch.randn(4096, 512, device="cuda")).mean()  # here
