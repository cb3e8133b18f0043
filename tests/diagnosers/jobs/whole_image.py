"""Super-resolution of a whole image instead of tiles.

https://github.com/xinntao/Real-ESRGAN/issues/437
"""

import torch
import torch.nn as nn


class Dense(nn.Module):
    def __init__(self, c=64, g=32):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c + i * g, g if i < 4 else c, 3, padding=1) for i in range(5))

    def forward(self, x):
        kept = [x]
        for conv in self.convs[:4]:
            kept.append(nn.functional.leaky_relu(conv(torch.cat(kept, 1)), 0.2))
        return x + 0.2 * self.convs[4](torch.cat(kept, 1))


model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    *(Dense() for _ in range(6)),
    nn.Upsample(scale_factor=4),
    nn.Conv2d(64, 3, 3, padding=1),
)
model = model.cuda().eval()
with torch.no_grad():
    for width in (128, 256, 1024):
        out = model(torch.rand(1, 3, width, width).cuda()).cpu()  # here
