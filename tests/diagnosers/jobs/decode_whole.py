"""A decoder makes the whole image at once.

https://github.com/huggingface/diffusers/pull/1441
"""

import torch
import torch.nn as nn


class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2)

    def forward(self, x):
        return self.conv(self.up(nn.functional.silu(self.norm(x))))  # here


unet = nn.Sequential(nn.Conv2d(4, 320, 3, padding=1), nn.SiLU(), nn.Conv2d(320, 4, 3, padding=1)).half().cuda()
decoder = nn.Sequential(
    nn.Conv2d(4, 512, 3, padding=1), Up(512, 512), Up(512, 256), Up(256, 128), nn.Conv2d(128, 3, 3, padding=1)
)
decoder = decoder.half().cuda()
with torch.no_grad():
    latents = torch.randn(1, 4, 256, 256, device="cuda", dtype=torch.half)
    for _ in range(6):
        latents = latents - 0.1 * unet(latents)
    image = decoder(latents)
