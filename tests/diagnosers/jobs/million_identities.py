"""The classifier of two million identities. https://github.com/deepinsight/insightface/issues/1426"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ArcFace(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, 128) * 0.01)

    def forward(self, features, labels):
        cosine = F.linear(F.normalize(features), F.normalize(self.weight))
        one_hot = torch.zeros_like(cosine).scatter_(1, labels.view(-1, 1), 1.0)
        return F.cross_entropy(64 * (cosine - 0.5 * one_hot), labels)


backbone = nn.Sequential(
    nn.Conv2d(3, 64, 3, 2, 1),
    nn.PReLU(),
    nn.Conv2d(64, 128, 3, 2, 1),
    nn.PReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(128, 128),
).cuda()
head = ArcFace(1_000_000).cuda()
opt = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
for _ in range(3):
    x, y = torch.rand(64, 3, 112, 112).cuda(), torch.randint(1_000_000, (64,)).cuda()
    loss = head(backbone(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
