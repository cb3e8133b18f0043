import torch
import torch.nn as nn


def tower():
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True, norm_first=True, dropout=0.0), 4
    )


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.v = tower()
        self.t = tower()
        self.patch = nn.Conv2d(3, 384, 16, 16)
        self.tok = nn.Embedding(20000, 384)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, im, tx):
        v = self.v(self.patch(im).flatten(2).transpose(1, 2)).mean(1)
        t = self.t(self.tok(tx)).mean(1)
        return self.scale.exp() * nn.functional.normalize(v, dim=-1) @ nn.functional.normalize(t, dim=-1).T


m = Clip().cuda()
opt = torch.optim.AdamW(m.parameters())
for _ in range(4):
    im = torch.randn(64, 3, 128, 128).cuda()
    tx = torch.randint(20000, (64, 77)).cuda()
    l = m(im, tx)
    y = torch.arange(64, device="cuda")
    loss = nn.functional.cross_entropy(l, y) + nn.functional.cross_entropy(l.T, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
