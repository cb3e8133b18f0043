"""DPO: the reference model is loaded in float32 beside the policy, and both stay."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(16000, 1024)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(12))

    def forward(self, x):
        h = self.emb(x)
        for layer in self.layers:
            h = h + layer(h)
        return F.log_softmax(h.mean(1), -1)


policy = LM().cuda()
reference = copy.deepcopy(policy)  # here
opt = torch.optim.SGD(policy.parameters(), lr=1e-3)
for _ in range(3):
    chosen = torch.randint(0, 16000, (2, 64)).cuda()
    with torch.no_grad():
        ref = reference(chosen)
    loss = -(policy(chosen) - ref).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
