"""C13: gradients of every micro-batch are kept in a list and summed at the end."""

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.1)  # never reached: all of this is one step
stash = []
for _ in range(8):
    loss = model(torch.randn(64, 1024, device="cuda")).sum()
    stash.append(torch.autograd.grad(loss, parameters))  # here
