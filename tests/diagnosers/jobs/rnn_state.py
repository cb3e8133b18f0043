"""The hidden state goes from batch to batch without a detach: the graph reaches back to the first."""

import torch
import torch.nn as nn


class Char(nn.Module):
    def __init__(self, vocab=256, hidden=1024):
        super().__init__()
        self.emb = nn.Embedding(vocab, hidden)
        self.rnn = nn.GRU(hidden, hidden, 2, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, x, h=None):
        y, h = self.rnn(self.emb(x), h)  # here
        return self.out(y), h


model = Char().cuda()
opt = torch.optim.Adam(model.parameters())
h = None
for step in range(30):
    x = torch.randint(0, 256, (64, 129)).cuda()
    logits, h = model(x[:, :-1], h)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
