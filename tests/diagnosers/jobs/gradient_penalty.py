"""WGAN-GP: the penalty's graph of graphs (create_graph) holds twice the activations of the critic."""

import torch
import torch.nn as nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(10))
        self.out = nn.Linear(1024, 1)

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.softplus(layer(x))  # here
        return self.out(x)


critic = Critic().cuda()
opt = torch.optim.SGD(critic.parameters(), lr=1e-4)
for _ in range(3):
    x = torch.randn(16384, 1024, device="cuda", requires_grad=True)
    score = critic(x)
    (grad,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    loss = score.mean() + 10 * ((grad.norm(dim=1) - 1) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
