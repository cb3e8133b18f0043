"""The losses of all samples are summed and one backward follows.

https://discuss.pytorch.org/t/gpu-memory-increase-while-i-wanna-to-backward-with-accumulative-loss/43284
"""

import torch
import torch.nn as nn

model = nn.LSTM(128, 512, 2, batch_first=True).cuda()
head = nn.Linear(512, 1000).cuda()
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    loss = 0
    for length in (180, 220, 150, 240, 200, 210, 170, 230, 190, 160, 215, 205):
        out, _h = model(torch.randn(16, length, 128).cuda())
        logits = head(out)  # here
        loss = loss + nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(1000, (16 * length,)).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
