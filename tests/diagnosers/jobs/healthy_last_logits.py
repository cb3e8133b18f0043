"""Of a long prompt only the last position's logits are made. Twin of prompt_logits.py."""

import torch
import torch.nn as nn

embed = nn.Embedding(32_000, 512).cuda()
layers = nn.ModuleList(nn.Sequential(nn.Linear(512, 2048), nn.SiLU(), nn.Linear(2048, 512)) for _ in range(6)).cuda()
head = nn.Linear(512, 32_000, bias=False).cuda()
with torch.no_grad():
    for length in (512, 2048, 8192):
        h = embed(torch.randint(32_000, (1, length)).cuda())
        for layer in layers:
            h = h + layer(h)
        token = head(h[:, -1:]).float().argmax(-1)
