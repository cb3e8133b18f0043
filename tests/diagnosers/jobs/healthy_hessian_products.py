"""Hessian-vector products that are used and dropped: nothing of a round is left. Twin of hessian_products.py."""

import torch
import torch.nn as nn

net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10)
).cuda()
v = [torch.randn_like(p) for p in net.parameters()]
for _ in range(8):
    x, y = torch.randn(64, 3, 32, 32).cuda(), torch.randint(10, (64,)).cuda()
    loss = nn.functional.cross_entropy(net(x), y)
    grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    inner = sum((g * each).sum() for g, each in zip(grads, v))
    products = torch.autograd.grad(inner, list(net.parameters()))
    v = [each.detach() for each in products]
