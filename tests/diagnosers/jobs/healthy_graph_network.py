import torch
import torch.nn as nn


class GC(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.l = nn.Linear(i, o)

    def forward(self, x, src, dst):
        m = self.l(x)[src]
        return torch.zeros(x.shape[0], m.shape[1], device=x.device).index_add_(0, dst, m)


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = GC(256, 256)
        self.b = GC(256, 256)
        self.c = GC(256, 40)

    def forward(self, x, a, b):
        return self.c(torch.relu(self.b(torch.relu(self.a(x, a, b)), a, b)), a, b)


x = torch.randn(20000, 256).cuda()
src = torch.randint(20000, (200000,)).cuda()
dst = torch.randint(20000, (200000,)).cuda()
y = torch.randint(40, (20000,)).cuda()
m = G().cuda()
opt = torch.optim.Adam(m.parameters())
for _ in range(4):
    loss = nn.functional.cross_entropy(m(x, src, dst), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
