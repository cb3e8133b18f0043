"""A correlation volume of all pairs of pixels.

https://github.com/princeton-vl/RAFT/issues/39
"""

import torch
import torch.nn as nn


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.fnet = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, 2, 1)
        )
        self.update = nn.Conv2d(128 + 2, 2, 3, padding=1)

    def corr(self, a, b):
        b_, c, h, w = a.shape
        volume = torch.matmul(a.flatten(2).transpose(1, 2), b.flatten(2))  # here
        return volume / torch.sqrt(torch.tensor(c).float())

    def forward(self, one, two):
        a, b = self.fnet(one), self.fnet(two)
        volume = self.corr(a, b).view(a.shape[0], -1, *a.shape[2:])
        pyramid = [volume]
        for _ in range(3):
            pyramid.append(nn.functional.avg_pool2d(pyramid[-1], 2))
        flow = torch.zeros(a.shape[0], 2, *a.shape[2:], device=a.device)
        for _ in range(4):
            flow = flow + self.update(torch.cat([a, flow], 1))
        return flow


model = Flow().cuda().eval()
with torch.no_grad():
    for height, width in ((368, 496), (440, 1024), (1080, 1920)):
        flow = model(torch.rand(1, 3, height, width).cuda(), torch.rand(1, 3, height, width).cuda())
