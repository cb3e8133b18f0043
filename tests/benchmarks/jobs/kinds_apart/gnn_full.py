import torch
import torch.nn as nn


class Conv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.l = nn.Linear(i, o)

    def forward(self, x, e):
        m = self.l(x)[e[0]]
        return torch.zeros(x.shape[0], m.shape[1], device=x.device).index_add(0, e[1], m)


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Conv(128, 256)
        self.b = Conv(256, 256)
        self.c = Conv(256, 40)

    def forward(self, x, e):
        return self.c(torch.relu(self.b(torch.relu(self.a(x, e)), e)), e)


data = {"x": torch.randn(50000, 128), "e": torch.randint(0, 50000, (2, 400000)), "y": torch.randint(0, 40, (50000,))}
data = {k: v.cuda() for k, v in data.items()}
g = G().cuda()
opt = torch.optim.Adam(g.parameters(), 0.01)
for _ep in range(6):
    g.train()
    opt.zero_grad()
    out = g(data["x"], data["e"])
    nn.functional.cross_entropy(out, data["y"]).backward()
    opt.step()
    g.eval()
    with torch.no_grad():
        g(data["x"], data["e"]).argmax(1)
