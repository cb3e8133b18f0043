"""Training takes 8,192 rays, validation all of an image at once.

https://github.com/kwea123/ngp_pl/issues/44
"""

import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(63, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))

    def forward(self, rays, samples=16):
        points = rays[:, None, :].expand(-1, samples, -1).repeat(1, 1, 21)
        return self.net(points).mean(1)  # here


model = Field().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
for epoch in range(2):
    for _ in range(4):
        loss = (model(torch.randn(2048, 3).cuda())[:, :3] - torch.rand(2048, 3).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        image = model(torch.randn(200 * 200, 3).cuda())
    model.train()
