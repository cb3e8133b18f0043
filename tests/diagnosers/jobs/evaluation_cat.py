"""C39: logits of the whole validation set are concatenated on the GPU."""

import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10_000)).cuda()
every = torch.empty(0, 10_000, device="cuda")
with torch.no_grad():
    for _ in range(40):
        out = model(torch.randn(64, 256, device="cuda"))
        every = torch.cat([every, out])  # here
