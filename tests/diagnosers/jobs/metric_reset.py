"""C31, harmless twin: the list is emptied at every step."""

import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    kept = []
    out = model(torch.randn(4096, 512, device="cuda"))
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(out.detach().softmax(dim=-1))
