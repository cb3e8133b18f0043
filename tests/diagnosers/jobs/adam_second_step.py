"""C04: fits in step 1, out of memory in step 2: Adam's state came in between."""

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
for _ in range(3):
    x = torch.randn(9000, 4096, device="cuda")
    model(x).sum().backward()
    optimizer.step()  # here
    optimizer.zero_grad()
