"""A data set whose __init__ moves all images to the GPU."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, n):
        self.data = torch.randn(n, 3, 96, 96).to("cuda")  # here
        self.labels = torch.randint(0, 10, (n,)).to("cuda")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.data[i], self.labels[i]


loader = DataLoader(Images(8000), batch_size=64)
model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
opt = torch.optim.Adam(model.parameters())
for i, (x, y) in enumerate(loader):
    nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    opt.zero_grad()
    if i == 4:
        break
