import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (t.view(*t.shape[:2], 8, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, dim=-1))
        x = x + scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.mlp(x)


model = nn.Sequential(nn.Embedding(8000, 512), *[Block(512) for _ in range(6)], nn.Linear(512, 8000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    tokens = torch.randint(8000, (8, 257)).cuda()
    loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
