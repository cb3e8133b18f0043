"""C41, healthy twin."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(24))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


model = Model().cuda().eval()
with torch.no_grad():
    for _ in range(6):
        out = model(torch.randn(4096, 512, device="cuda"))
        best = out.argmax(dim=-1)
