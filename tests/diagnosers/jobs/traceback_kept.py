"""Errors are collected, and their tracebacks keep the frames with the outputs of every failed step."""

import torch
import torch.nn as nn

model = nn.Linear(512, 4096).cuda()
errors = []


def step(x):
    with torch.no_grad():
        scores = model(x)  # here
    if scores.shape[1] != 10:
        raise ValueError("wrong number of classes")


for _ in range(8):
    try:
        step(torch.randn(4096, 512, device="cuda"))
    except ValueError as error:
        errors.append(error)
