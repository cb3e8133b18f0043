"""Semi-hard mining repeats the matrix of distances for every pair. https://github.com/huggingface/sentence-transformers/pull/4026"""

import torch
import torch.nn as nn


class SemiHard(nn.Module):
    def __init__(self, model, margin=5.0):
        super().__init__()
        self.model, self.margin = model, margin

    def forward(self, x, labels):
        emb = self.model(x)
        dot = emb @ emb.t()
        square = dot.diagonal()
        pdist = (square.unsqueeze(0) - 2 * dot + square.unsqueeze(1)).clamp(min=0)
        adjacency = labels == labels.t()
        n = labels.numel()
        tile = pdist.repeat(n, 1)  # here
        mask = ~adjacency.repeat(n, 1) & (tile > pdist.t().reshape(-1, 1))
        negatives = (tile - tile.max(1, keepdim=True)[0]) * mask.float()
        semi = negatives.min(1)[0].reshape(n, n).t()
        loss = (self.margin + pdist - semi) * adjacency.float()
        return loss.clamp(min=0).sum() / adjacency.float().sum()


encoder = nn.Sequential(nn.EmbeddingBag(30_000, 256), nn.Linear(256, 256), nn.Tanh()).cuda()
loss_model = SemiHard(encoder)
opt = torch.optim.AdamW(encoder.parameters(), lr=2e-5)
for _ in range(4):
    ids, labels = torch.randint(30_000, (512, 64)).cuda(), torch.randint(50, (512, 1)).cuda()
    loss = loss_model(ids, labels)
    loss.backward()
    opt.step()
    opt.zero_grad()
