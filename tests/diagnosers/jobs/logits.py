"""C15: batch x sequence x vocabulary, several times."""

import torch
import torch.nn as nn
from torch.nn.functional import cross_entropy

trunk = nn.Sequential(nn.Embedding(50_000, 64), nn.Linear(64, 64), nn.GELU()).cuda()
head = nn.Linear(64, 50_000, bias=False).cuda()
optimizer = torch.optim.SGD([*trunk.parameters(), *head.parameters()], lr=0.1)
for _ in range(2):
    tokens = torch.randint(50_000, (4, 512), device="cuda")
    logits = head(trunk(tokens)).float()
    cross_entropy(logits.view(-1, 50_000), tokens.view(-1)).backward()  # here
    optimizer.step()
    optimizer.zero_grad()
