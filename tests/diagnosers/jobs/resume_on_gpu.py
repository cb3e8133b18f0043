"""Resume: torch.load puts the whole checkpoint on the GPU, beside the model and its optimizer."""

import os
import tempfile

import torch
import torch.nn as nn


def build():
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(16)]).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def step(model, opt):
    model(torch.randn(8, 2048).cuda()).sum().backward()
    opt.step()
    opt.zero_grad()


path = os.path.join(tempfile.mkdtemp(), "ckpt.pt")
model, opt = build()
step(model, opt)
torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, path)
checkpoint = torch.load(path)  # here
model.load_state_dict(checkpoint["model"])
opt.load_state_dict(checkpoint["opt"])
for _ in range(3):
    step(model, opt)
