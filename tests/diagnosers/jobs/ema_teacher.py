"""Mean teacher: the teacher's forward runs with gradients on."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(10))

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))  # here
        return x


student = Encoder().cuda()
teacher = copy.deepcopy(student)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(8192, 1024).cuda()
    target = teacher(x)
    loss = F.mse_loss(student(x), target.detach())
    loss.backward()
    opt.step()
    opt.zero_grad()
    for p, q in zip(teacher.parameters(), student.parameters()):
        p.data.mul_(0.99).add_(q.data, alpha=0.01)
