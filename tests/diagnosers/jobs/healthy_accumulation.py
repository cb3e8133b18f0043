import torch
import torch.nn as nn

model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(16):
    (model(torch.randn(256, 1024, device="cuda")).mean() / 4).backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
