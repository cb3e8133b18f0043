import torch
import torch.nn as nn


class Bottleneck(nn.Module):
    def __init__(self, i, w, st):
        super().__init__()
        o = 4 * w
        self.conv1 = nn.Conv2d(i, w, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(w)
        self.conv2 = nn.Conv2d(w, w, 3, st, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(w)
        self.conv3 = nn.Conv2d(w, o, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(i, o, 1, st, bias=False), nn.BatchNorm2d(o)) if st != 1 or i != o else None

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        L = []
        i = 64
        for w, n, st in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for k in range(n):
                L.append(Bottleneck(i, w, st if k == 0 else 1))
                i = 4 * w
        self.layers = nn.Sequential(*L)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


def train_one_epoch(model, opt, crit, n):
    model.train()
    for _i in range(n):
        images = torch.randn(32, 3, 224, 224).to("cuda", memory_format=torch.channels_last, non_blocking=True)
        target = torch.randint(0, 1000, (32,)).to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(images)
            loss = crit(out, target)
        opt.zero_grad()
        loss.backward()
        opt.step()


def validate(model, n):
    model.eval()
    with torch.no_grad():
        for _i in range(n):
            model(torch.randn(32, 3, 224, 224, device="cuda")).argmax(1)


m = ResNet().to("cuda", memory_format=torch.channels_last)
o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True)
c = nn.CrossEntropyLoss().cuda()
train_one_epoch(m, o, c, 4)
validate(m, 2)
train_one_epoch(m, o, c, 2)
