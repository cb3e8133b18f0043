"""Logits of every position of a long prompt, upcast, where one is needed. https://github.com/QwenLM/Qwen3/issues/570"""

import torch
import torch.nn as nn


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(152_000, 512, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(512, 2048, dtype=torch.bfloat16), nn.SiLU(), nn.Linear(2048, 512, dtype=torch.bfloat16)
            )
            for _ in range(6)
        )
        self.lm_head = nn.Linear(512, 152_000, bias=False, dtype=torch.bfloat16)

    def forward(self, ids):
        h = self.embed(ids)
        for layer in self.layers:
            h = h + layer(h)
        logits = self.lm_head(h)
        return logits.float()  # here


model = LM().cuda().eval()
with torch.no_grad():
    for length in (512, 2048, 8192):
        ids = torch.randint(152_000, (1, length)).cuda()
        token = model(ids)[:, -1].argmax(-1)
