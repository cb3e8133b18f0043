"""C58: autocast casts the weights of a model that only infers."""

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(12)]).cuda()
with torch.no_grad():
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(torch.randn(16, 1024, device="cuda"))
