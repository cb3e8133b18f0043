"""C14: one micro-batch has twenty times the tokens that were meant; the logits are what fails."""

import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy

model = nn.Sequential(nn.Embedding(50_000, 64), nn.Linear(64, 64), nn.Linear(64, 50_000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for tokens in (500, 480, 510, 490, 505, 10_000):
    ids = torch.randint(50_000, (tokens,)).cuda()
    loss = cross_entropy(model(ids).float(), ids)  # here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
