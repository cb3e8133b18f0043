import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(8)).cuda()
optimizer = torch.optim.AdamW(blocks.parameters())
for _ in range(5):
    x = torch.randn(4096, 512, device="cuda", requires_grad=True)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    x.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
