"""`total_loss += loss` keeps the graph of every batch."""

import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)])
        self.head = nn.Linear(1024, 10)

    def forward(self, x):
        return self.head(self.body(x))


def train(model, loader, optimizer, criterion):
    total_loss = 0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = criterion(model(x), y)  # here
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        total_loss += loss
    return total_loss / len(loader)


model = Net().cuda()
loader = [(torch.randn(4096, 1024), torch.randint(0, 10, (4096,))) for _ in range(40)]
train(model, loader, torch.optim.Adam(model.parameters(), lr=1e-3), nn.CrossEntropyLoss())
