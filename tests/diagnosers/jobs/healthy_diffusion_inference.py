import torch
import torch.nn as nn

text = nn.TransformerEncoder(nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True), 4).half().cuda().eval()


class Blk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n = nn.GroupNorm(8, c)
        self.c = nn.Conv2d(c, c, 3, 1, 1)

    def forward(self, x):
        return x + self.c(nn.functional.silu(self.n(x)))


unet = (
    nn.Sequential(nn.Conv2d(4, 320, 3, 1, 1), *[Blk(320) for _ in range(8)], nn.Conv2d(320, 4, 3, 1, 1))
    .half()
    .cuda()
    .eval()
)
vae = (
    nn.Sequential(
        nn.Conv2d(4, 256, 3, 1, 1),
        nn.Upsample(scale_factor=2),
        Blk(256),
        nn.Upsample(scale_factor=4),
        nn.Conv2d(256, 3, 3, 1, 1),
    )
    .half()
    .cuda()
    .eval()
)
with torch.no_grad():
    for _ in range(2):
        c = text(torch.randn(2, 77, 768, device="cuda", dtype=torch.half))
        x = torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.half)
        for _ in range(8):
            x = x - 0.1 * unet(x)
        img = vae(x).float().cpu()
