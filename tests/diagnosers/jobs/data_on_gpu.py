"""The whole data set is put on the GPU before the loop."""

import torch
import torch.nn as nn

data = torch.randn(400_000, 512).to("cuda")  # here
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(4):
    model(data[index * 128 : (index + 1) * 128]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
