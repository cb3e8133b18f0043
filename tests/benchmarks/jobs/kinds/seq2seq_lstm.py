import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, V, d, h):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.rnn = nn.LSTM(d, h, 2, batch_first=True, dropout=0.2)

    def forward(self, x):
        return self.rnn(self.emb(x))[1]


class Decoder(nn.Module):
    def __init__(self, V, d, h):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.rnn = nn.LSTM(d, h, 2, batch_first=True)
        self.out = nn.Linear(h, V)

    def forward(self, x, st):
        o, st = self.rnn(self.emb(x)[:, None], st)
        return self.out(o[:, 0]), st


enc, dec = Encoder(20000, 512, 1024).cuda(), Decoder(20000, 512, 1024).cuda()
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=1e-3)
crit = nn.CrossEntropyLoss()
for _e in range(4):
    src = torch.randint(0, 20000, (32, 30), device="cuda")
    tgt = torch.randint(0, 20000, (32, 20), device="cuda")
    opt.zero_grad()
    st = enc(src)
    loss = 0
    for t in range(19):
        o, st = dec(tgt[:, t], st)
        loss = loss + crit(o, tgt[:, t + 1])
    loss.backward()
    nn.utils.clip_grad_norm_(dec.parameters(), 1.0)
    opt.step()
