"""A convnet with batch norm for three SGD steps, or with `oom` until the memory is full."""

import sys

import torch
from measuring import finish
from torch import nn
from torch.nn import functional

device, size, *more = sys.argv[1:]
width, pixels, batch = (128, 224, 32) if size == "full" else (8, 16, 4)


def stage(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


torch.manual_seed(0)
model = nn.Sequential(stage(3, width), stage(width, 2 * width), stage(2 * width, 4 * width)).to(device)
head = nn.Linear(4 * width, 10).to(device)
whole = nn.ModuleList([model, head])
optimizer = torch.optim.SGD(whole.parameters(), lr=0.01, momentum=0.9)


def step(times=1):
    images = torch.randn(batch * times, 3, pixels, pixels).to(device)
    loss = functional.cross_entropy(head(model(images).mean((2, 3))), torch.zeros(len(images), dtype=torch.int64).to(device))
    loss.backward()
    optimizer.step()
    return loss


finish(step, whole, optimizer, device, more)
