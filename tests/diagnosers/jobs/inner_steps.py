"""MAML keeps the graph of every inner step for the outer backward, https://github.com/tristandeleu/pytorch-maml/issues/21"""

import torch
import torch.nn as nn
from torch.func import functional_call

model = nn.Sequential(
    *(
        layer
        for i in range(4)
        for layer in (
            nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1),
            nn.BatchNorm2d(64, track_running_stats=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
    ),
    nn.Flatten(),
    nn.Linear(64 * 5 * 5, 5),
).cuda()
optimizer = torch.optim.Adam(model.parameters())


def adapt(x, y, steps):
    params = dict(model.named_parameters())
    for _ in range(steps):
        loss = nn.functional.cross_entropy(functional_call(model, params, (x,)), y)  # here
        grads = torch.autograd.grad(loss, tuple(params.values()), create_graph=True)
        params = {name: p - 0.01 * g for (name, p), g in zip(params.items(), grads)}
    return params


for _ in range(3):
    optimizer.zero_grad()
    for task in range(2):
        x, y = torch.randn(25, 3, 84, 84).cuda(), torch.randint(5, (25,)).cuda()
        params = adapt(x, y, 5)
        loss = nn.functional.cross_entropy(functional_call(model, params, (x,)), y)
        loss.backward()
    optimizer.step()
