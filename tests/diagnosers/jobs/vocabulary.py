"""C01: an embedding of whole words. SGD without momentum, batch 1."""

import torch
import torch.nn as nn

model = nn.Sequential(nn.Embedding(200_000, 512), nn.Linear(512, 512), nn.Linear(512, 200_000)).cuda()  # here
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    tokens = torch.randint(200_000, (1, 8), device="cuda")
    nn.functional.cross_entropy(model(tokens).view(8, -1), tokens.view(8)).backward()
    optimizer.step()
    optimizer.zero_grad()
