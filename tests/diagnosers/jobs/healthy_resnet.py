import torch
import torch.nn as nn


class BB(nn.Module):
    def __init__(self, c, d, st):
        super().__init__()
        self.c1 = nn.Conv2d(c, d, 3, st, 1, bias=False)
        self.b1 = nn.BatchNorm2d(d)
        self.c2 = nn.Conv2d(d, d, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(d)
        self.sc = (
            nn.Sequential(nn.Conv2d(c, d, 1, st, bias=False), nn.BatchNorm2d(d)) if st != 1 or c != d else nn.Identity()
        )

    def forward(self, x):
        return torch.relu(self.b2(self.c2(torch.relu(self.b1(self.c1(x))))) + self.sc(x))


m = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(True),
    nn.MaxPool2d(3, 2, 1),
    BB(64, 64, 1),
    BB(64, 64, 1),
    BB(64, 128, 2),
    BB(128, 128, 1),
    BB(128, 256, 2),
    BB(256, 256, 1),
    BB(256, 512, 2),
    BB(512, 512, 1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(512, 1000),
).cuda()
opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
crit = nn.CrossEntropyLoss()
for _ in range(4):
    x = torch.randn(32, 3, 224, 224).cuda(non_blocking=True)
    y = torch.randint(1000, (32,)).cuda(non_blocking=True)
    opt.zero_grad()
    loss = crit(m(x), y)
    loss.backward()
    opt.step()
