"""All triplets of a batch, B x B x B. https://github.com/huggingface/sentence-transformers/pull/4029"""

import torch
import torch.nn as nn


def batch_all(emb, labels, margin=0.5):
    dist = torch.cdist(emb, emb)
    loss = dist.unsqueeze(2) - dist.unsqueeze(1) + margin  # here
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    valid = same.unsqueeze(2) & ~same.unsqueeze(1)
    loss = (valid.float() * loss).clamp(min=0)
    positive = (loss > 1e-16).float()
    return loss.sum() / (positive.sum() + 1e-16)


model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 128)).cuda()
opt = torch.optim.Adam(model.parameters())
for _ in range(4):
    x, y = torch.randn(512, 512).cuda(), torch.randint(64, (512,)).cuda()
    loss = batch_all(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
