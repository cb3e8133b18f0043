import torch
import torch.nn as nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10000, 650)
        self.r = nn.LSTM(650, 650, 2, batch_first=True, dropout=0.2)
        self.o = nn.Linear(650, 10000)

    def forward(self, x, h):
        y, h = self.r(self.e(x), h)
        return self.o(y), h


m = M().cuda()
opt = torch.optim.SGD(m.parameters(), lr=1.0)
h = None
for _ in range(5):
    x = torch.randint(10000, (20, 71)).cuda()
    if h is not None:
        h = tuple(v.detach() for v in h)
    y, h = m(x[:, :-1], h)
    loss = nn.functional.cross_entropy(y.reshape(-1, 10000), x[:, 1:].reshape(-1))
    m.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 0.25)
    opt.step()
