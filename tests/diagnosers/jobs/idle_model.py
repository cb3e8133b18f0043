"""C03: a model that this phase does not use lies on the GPU while latents are made."""

import torch
import torch.nn as nn


def stack(width, depth):
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())])


trunk = stack(2048, 12).cuda()  # here
encoder = stack(1024, 4).cuda()
with torch.no_grad():
    latents = [encoder(torch.randn(16384, 1024, device="cuda")).cpu() for _ in range(4)]
