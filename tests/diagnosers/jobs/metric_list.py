"""C31, C40: predictions of every step are kept on the GPU, without a graph."""

import torch
import torch.nn as nn

model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(10):
    out = model(torch.randn(4096, 512, device="cuda"))
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(out.detach().softmax(dim=-1))  # here
