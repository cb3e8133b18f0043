"""Gradients of every sample, each as large as the model. https://github.com/meta-pytorch/opacus/issues/502"""

import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

model = nn.Sequential(nn.Linear(784, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 10)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(params, x, y):
    return nn.functional.cross_entropy(functional_call(model, params, (x.unsqueeze(0),)), y.unsqueeze(0))


for _ in range(4):
    x, y = torch.randn(256, 784).cuda(), torch.randint(10, (256,)).cuda()
    params = {name: p.detach() for name, p in model.named_parameters()}
    each = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)  # here
    norm = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    clip = (1 / (norm + 1e-6)).clamp(max=1)
    for name, p in model.named_parameters():
        p.grad = torch.einsum("n,n...->...", clip, each[name]) / len(x)
    opt.step()
    del each, norm, clip
