"""Hessian-vector products whose graph is held by the gradients of the last batch. https://github.com/pytorch/pytorch/issues/2498"""

import torch
import torch.nn as nn

net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(1024, 10),
).cuda()
v = [torch.randn_like(p) for p in net.parameters()]
products = []
for _ in range(30):
    x, y = torch.randn(64, 3, 32, 32).cuda(), torch.randint(10, (64,)).cuda()
    loss = nn.functional.cross_entropy(net(x), y)  # here
    grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    inner = sum((g * each).sum() for g, each in zip(grads, v))
    products.append(torch.autograd.grad(inner, list(net.parameters()), create_graph=True))
