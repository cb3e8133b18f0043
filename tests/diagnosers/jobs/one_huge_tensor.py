"""C14: one request is larger than the card."""

import torch
import torch.nn as nn

model = nn.Linear(64, 64).cuda()
x = torch.randn(100_000, 64, device="cuda")
distances = x.unsqueeze(0) - x.unsqueeze(1)  # here
