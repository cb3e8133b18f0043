"""Every optimizer's state, in each implementation, to the byte."""

import torch
from torch import nn

WIDTH = 512
WEIGHT, BIAS = 4 * WIDTH * WIDTH, 4 * WIDTH


def state_bytes(make):
    model = nn.Linear(WIDTH, WIDTH, device="cuda")
    optimizer = make(model.parameters())
    base = None
    for _ in range(3):

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, WIDTH, device="cuda")).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        base = torch.cuda.memory_allocated() if base is None else base
    model.zero_grad()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated() - WEIGHT - BIAS


one, both = WEIGHT + BIAS, 2 * (WEIGHT + BIAS)
on_device = 2 * 512  # a step counter per parameter
cases = [
    ("sgd", lambda p: torch.optim.SGD(p, lr=0.1), 0),
    ("sgd momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), one),
    ("sgd foreach", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True), one),
    ("sgd fused", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), one),
    ("adam", lambda p: torch.optim.Adam(p), both),
    ("adam for-loop", lambda p: torch.optim.Adam(p, foreach=False), both),
    ("adam foreach", lambda p: torch.optim.Adam(p, foreach=True), both),
    ("adam fused", lambda p: torch.optim.Adam(p, fused=True), both + on_device),
    ("adamw", lambda p: torch.optim.AdamW(p), both),
    ("adamw fused", lambda p: torch.optim.AdamW(p, fused=True), both + on_device),
    ("adamw capturable", lambda p: torch.optim.AdamW(p, capturable=True), both + on_device),
    ("adamw amsgrad", lambda p: torch.optim.AdamW(p, amsgrad=True), both + one),
    ("rmsprop", lambda p: torch.optim.RMSprop(p), one),
    ("adagrad", lambda p: torch.optim.Adagrad(p), one),
    ("adafactor", lambda p: torch.optim.Adafactor(p), None),
    ("lbfgs", lambda p: torch.optim.LBFGS(p, max_iter=2), None),
]
for name, make, expected in cases:
    got = state_bytes(make)
    print(f"{name}: {got}")
    assert expected is None or got == expected, (name, got, expected)
    assert torch.cuda.memory_allocated() == 0, name
