"""Dice loss with a one-hot target of 64-bit integers. https://github.com/qubvel-org/segmentation_models.pytorch/issues/462"""

import torch
import torch.nn as nn
import torch.nn.functional as F


def dice(logits, target):
    probs = logits.log_softmax(1).exp()
    y = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2)  # here
    inter = (probs * y).sum((0, 2, 3))
    return 1 - (2 * inter / (probs.sum((0, 2, 3)) + y.sum((0, 2, 3)))).mean()


model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 150, 1)).cuda()
opt = torch.optim.Adam(model.parameters())
for _ in range(3):
    x, y = torch.rand(2, 3, 512, 512).cuda(), torch.randint(150, (2, 512, 512)).cuda()
    loss = dice(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
