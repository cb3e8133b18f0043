import torch
import torch.nn as nn
import torch.nn.functional as F


class FPN(nn.Module):
    def __init__(self):
        super().__init__()
        c = [64, 128, 256, 512]
        self.st = nn.ModuleList()
        i = 3
        for o in c:
            self.st.append(
                nn.Sequential(
                    nn.Conv2d(i, o, 3, 2, 1),
                    nn.BatchNorm2d(o),
                    nn.ReLU(),
                    nn.Conv2d(o, o, 3, 1, 1),
                    nn.BatchNorm2d(o),
                    nn.ReLU(),
                )
            )
            i = o
        self.lat = nn.ModuleList(nn.Conv2d(o, 256, 1) for o in c)
        self.cls = nn.Sequential(nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, 9 * 80, 3, 1, 1))
        self.box = nn.Conv2d(256, 36, 3, 1, 1)

    def forward(self, x):
        fs = []
        for t in self.st:
            x = t(x)
            fs.append(x)
        p = None
        outs = []
        for f, l in zip(fs[::-1], list(self.lat)[::-1], strict=False):
            q = l(f)
            p = q if p is None else q + F.interpolate(p, size=q.shape[-2:])
            outs.append((self.cls(p), self.box(p)))
        return outs


def main():
    m = FPN().to("cuda")
    opt = torch.optim.SGD(m.parameters(), 0.01, momentum=0.9)
    for _i, (h, w) in enumerate([(512, 640), (448, 704), (640, 512), (576, 576), (480, 672)]):
        img = torch.rand(4, 3, h, w).to("cuda")
        outs = m(img)
        loss = sum(torch.sigmoid(c).pow(2).mean() + b.abs().mean() for c, b in outs)
        opt.zero_grad()
        loss.backward()
        opt.step()


main()
