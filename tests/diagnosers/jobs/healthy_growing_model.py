"""Layers are added as training goes on, by one line, and all of them are trained."""

import torch
import torch.nn as nn

model = nn.Sequential().cuda()
for stage in range(4):
    model.append(nn.Sequential(nn.Linear(512, 512), nn.ReLU()).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(512, 512).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
