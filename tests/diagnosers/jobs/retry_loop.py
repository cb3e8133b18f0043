"""Out of memory is caught and tried again with half the batch, inside the except block: the traceback keeps it all."""

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(12)]).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def step(batch):
    out = batch
    for layer in model:
        out = layer(out)  # here
    out.mean().backward()
    opt.step()
    opt.zero_grad()


for _ in range(3):
    batch = torch.randn(65536, 1024).cuda()
    try:
        step(batch)
    except RuntimeError as e:
        print("retry", str(e)[:20])
        for half in batch.chunk(2):
            step(half)
