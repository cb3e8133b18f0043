"""C16: attention that falls back to the math path keeps its scores."""

import torch
import torch.nn as nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(512, 1536)

    def forward(self, x, mask):
        q, k, v = (t.view(1, -1, 8, 64).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        return x + scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(1, -1, 512)  # here


layers = nn.ModuleList(Attention() for _ in range(6)).cuda()
mask = torch.ones(2048, 2048, dtype=torch.bool, device="cuda").tril()
for _ in range(2):
    x = torch.randn(1, 2048, 512, device="cuda")
    with sdpa_kernel(SDPBackend.MATH):
        for layer in layers:
            x = layer(x, mask)
    x.sum().backward()
    layers.zero_grad()
