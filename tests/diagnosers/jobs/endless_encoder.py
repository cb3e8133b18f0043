"""A state is fed back with gradients on, and no backward follows. https://github.com/pytorch/pytorch/issues/1887"""

import torch
import torch.nn as nn

encoder = nn.GRU(512, 512).cuda()
hidden = torch.randn(1, 64, 512).cuda()
for _ in range(300):
    output, hidden = encoder(hidden, hidden)  # here
