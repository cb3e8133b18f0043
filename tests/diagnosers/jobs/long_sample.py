"""C64: one batch is four times as long as the others."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # here
        return x


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for length in (4000, 4400, 3800, 4100, 4000, 3900, 16000, 4000):
    model(torch.randn(8, length, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
