import torch
import torch.nn as nn

model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for length in (1000, 1300, 900, 1100, 1400, 1200, 800):
    model(torch.randn(4, length, 512, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
