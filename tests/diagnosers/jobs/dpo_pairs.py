"""DPO: logits of chosen and rejected of both models in float32. https://github.com/eric-mitchell/direct-preference-optimization/issues/37"""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50_000, 256)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)
        )
        self.head = nn.Linear(256, 50_000, bias=False)

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = h + layer(h)
        return self.head(h)


def log_probs(logits, labels):
    return torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2).sum(-1)  # here


policy = LM().cuda().bfloat16()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
opt = torch.optim.RMSprop(policy.parameters(), lr=5e-7)
for _ in range(3):
    ids = torch.randint(50_000, (8, 512)).cuda()
    mine = log_probs(policy(ids).to(torch.float32), ids)
    with torch.no_grad():
        theirs = log_probs(reference(ids).to(torch.float32), ids)
    margin = (mine - theirs)[:4] - (mine - theirs)[4:]
    loss = -F.logsigmoid(0.1 * margin).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
