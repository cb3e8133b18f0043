import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

enc = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Conv2d(64, 256, 3, 2, 1),
    nn.BatchNorm2d(256),
    nn.ReLU(),
    nn.Conv2d(256, 512, 3, 2, 1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(8192, 2048),
    nn.ReLU(),
    nn.Linear(2048, 128),
)


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = enc
        self.k = copy.deepcopy(enc)
        self.register_buffer("queue", F.normalize(torch.randn(128, 65536), dim=0))

    @torch.no_grad()
    def _momentum(self):
        for a, b in zip(self.q.parameters(), self.k.parameters(), strict=False):
            b.data = b.data * 0.999 + a.data * 0.001

    def forward(self, x, y):
        q = F.normalize(self.q(x), dim=1)
        with torch.no_grad():
            self._momentum()
            k = F.normalize(self.k(y), dim=1)
        return torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1) / 0.07


m = MoCo().cuda()
opt = torch.optim.SGD(m.q.parameters(), 0.03, momentum=0.9)
for _i in range(5):
    a, b = torch.randn(64, 3, 128, 128).cuda(), torch.randn(64, 3, 128, 128).cuda()
    lg = m(a, b)
    loss = F.cross_entropy(lg, torch.zeros(64, dtype=torch.long, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
