"""Automatic mixed precision with a gradient scaler, in the old and the new spelling."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast

model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 512, bias=False)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
weights = 4 * 512 * 512 * 2 + 2 * 2048
assert torch.cuda.memory_allocated() == weights

for scaler, context in (
    (GradScaler(), autocast),
    (torch.amp.GradScaler("cuda"), lambda: torch.autocast("cuda", dtype=torch.bfloat16)),
):
    for step in range(2):
        x = torch.randn(32, 512, device="cuda")
        with context():
            y = model(x)
            assert y.dtype in (torch.float16, torch.bfloat16)
            loss = y.float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
assert all(p.dtype == torch.float32 for p in model.parameters())
assert len(optimizer.state) == 4, "steps were skipped"
with torch.autocast("cuda", enabled=False):
    assert model(x).dtype == torch.float32
