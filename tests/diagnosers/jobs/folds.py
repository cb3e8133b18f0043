"""The models of earlier folds stay in a list.

https://bot.dharman.net/reports.php?id=1953130
"""

import torch
import torch.nn as nn


def train_fold():
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()  # here
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(64, 1024).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


folds = []
for fold in range(10):
    folds.append(train_fold())
