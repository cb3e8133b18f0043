"""Qwen-sized vocabulary, 4k context, tiny model: the logits and their float32 copy are what does not fit."""

import torch
import torch.nn as nn


class LM(nn.Module):
    def __init__(self, vocab=151_936, dim=256):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(2)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        return self.head(self.body(self.emb(ids)))


model = LM().to(torch.bfloat16).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for n in (512, 1024, 2048, 4096):
    ids = torch.randint(0, 151_936, (1, n + 1)).cuda()
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.float().view(-1, 151_936), ids[:, 1:].reshape(-1))  # here
    loss.backward()
    opt.step()
    opt.zero_grad()
