"""C33, C43: resuming reads the optimizer's state to the GPU, beside model and optimizer."""

import io

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(16)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
saved = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
saved.seek(0)
checkpoint = torch.load(saved)  # here
model.load_state_dict(checkpoint["model"])
for _ in range(2):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
