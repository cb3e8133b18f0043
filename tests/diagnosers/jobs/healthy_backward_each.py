"""The near miss of losses_of_a_batch.py: each loss has its own backward."""

import torch
import torch.nn as nn

model = nn.LSTM(128, 512, 2, batch_first=True).cuda()
head = nn.Linear(512, 1000).cuda()
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    for length in (180, 220, 150, 240, 200, 210):
        out, _h = model(torch.randn(16, length, 128).cuda())
        target = torch.randint(1000, (16 * length,)).cuda()
        nn.functional.cross_entropy(head(out).flatten(0, 1), target).backward()
    optimizer.step()
