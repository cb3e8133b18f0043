"""C16: attention written out keeps its scores."""

import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(512, 1536)

    def forward(self, x):
        q, k, v = (t.view(1, -1, 8, 64).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        weights = torch.softmax(q @ k.transpose(-2, -1) / 8, dim=-1)  # here
        return (weights @ v).transpose(1, 2).reshape(1, -1, 512)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.ModuleList(Attention() for _ in range(6))

    def forward(self, x):
        for layer in self.attention:
            x = x + layer(x)
        return x


model = Model().cuda()
for _ in range(2):
    model(torch.randn(1, 4096, 512, device="cuda")).sum().backward()
    model.zero_grad()
