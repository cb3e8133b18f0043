"""C41: a buffer is blended with outputs outside no_grad, and its graph grows with every request."""

import torch
import torch.nn as nn

model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.GELU())]).cuda().eval()
memory = torch.zeros(512, 1024, device="cuda")
for _ in range(20):
    memory = memory * 0.9 + model(torch.randn(512, 1024, device="cuda"))  # here
