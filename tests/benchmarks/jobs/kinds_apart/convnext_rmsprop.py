import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel


class Blk(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.dw = nn.Conv2d(d, d, 7, padding=3, groups=d)
        self.n = nn.LayerNorm(d)
        self.a = nn.Linear(d, 4 * d)
        self.b = nn.Linear(4 * d, d)
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.g * self.b(nn.functional.gelu(self.a(self.n(y))))
        return x + y.permute(0, 3, 1, 2)


m = nn.Sequential(
    nn.Conv2d(3, 96, 4, 4),
    *[Blk(96) for _ in range(3)],
    nn.Conv2d(96, 192, 2, 2),
    *[Blk(192) for _ in range(3)],
    nn.Conv2d(192, 384, 2, 2),
    *[Blk(384) for _ in range(9)],
    nn.Conv2d(384, 768, 2, 2),
    *[Blk(768) for _ in range(3)],
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(768, 1000),
).cuda()
avg = AveragedModel(m)
opt = torch.optim.RMSprop(m.parameters(), 1e-3, momentum=0.9)
for _i in range(5):
    x = torch.randn(16, 3, 224, 224).cuda()
    y = torch.randint(0, 1000, (16,)).cuda()
    opt.zero_grad()
    nn.functional.cross_entropy(m(x), y, label_smoothing=0.1).backward()
    opt.step()
    avg.update_parameters(m)
