import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
import torch
import torch.nn as nn

net = nn.Sequential(
    nn.Linear(2048, 8192),
    nn.ReLU(),
    nn.Linear(8192, 8192),
    nn.ReLU(),
    nn.Linear(8192, 8192),
    nn.Tanh(),
    nn.Linear(8192, 2048),
).cuda()
opt = torch.optim.Adam(net.parameters())
for i in range(6):
    x = torch.rand(1024 + 256 * (i % 3), 2048).cuda()
    loss = ((net(x) - x) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
