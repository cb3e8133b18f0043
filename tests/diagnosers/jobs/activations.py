"""A batch that is too large for the card."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # here
        return x


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(65536, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
