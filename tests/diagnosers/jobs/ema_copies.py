"""C47: a deep copy of the model is kept at every checkpoint."""

import copy

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for step in range(12):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 2:
        history.append(copy.deepcopy(model).state_dict())  # here
