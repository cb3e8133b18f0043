"""C41: inference without no_grad."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(24))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))  # here
        return x


model = Model().cuda().eval()
for _ in range(6):
    out = model(torch.randn(4096, 512, device="cuda"))
    best = out.argmax(dim=-1)
