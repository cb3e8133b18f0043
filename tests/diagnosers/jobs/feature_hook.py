"""A hook keeps every layer's output of every batch, to be plotted some day."""

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)], nn.Linear(1024, 10)).cuda()
features = []
for layer in model[:-1]:
    layer.register_forward_hook(lambda module, args, output: features.append(output))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    x, y = torch.randn(2048, 1024).cuda(), torch.randint(0, 10, (2048,)).cuda()
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()  # here
    opt.step()
