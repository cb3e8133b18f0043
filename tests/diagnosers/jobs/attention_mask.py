"""A mask of N x N per head, in float32, made for every layer's attention."""

import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
        scores = scores.masked_fill(mask == 0, float("-inf"))
        attn = torch.softmax(scores, dim=-1)  # here
        return self.out((attn @ v).transpose(1, 2).reshape(b, n, c))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention(256, 8) for _ in range(4))

    def forward(self, x):
        mask = torch.tril(torch.ones(x.shape[1], x.shape[1], device=x.device))
        for layer in self.layers:
            x = x + layer(x, mask)
        return x


model = Model().cuda()
opt = torch.optim.AdamW(model.parameters())
for n in (512, 1024, 2048, 4096):
    model(torch.randn(2, n, 256).cuda()).mean().backward()
    opt.step()
    opt.zero_grad()
