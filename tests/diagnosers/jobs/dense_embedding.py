"""A huge table whose gradient and moments are dense.

https://github.com/mlcommons/algorithmic-efficiency/issues/505
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding_table = nn.Embedding(2_000_000, 64)
        self.top = nn.Sequential(nn.Linear(26 * 64, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, ids):
        return self.top(self.embedding_table(ids).flatten(1))


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    ids = torch.randint(2_000_000, (4096, 26)).cuda()
    loss = model(ids).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
