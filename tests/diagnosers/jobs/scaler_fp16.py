"""GradScaler with a float32 model whose foreach step needs one more copy of the parameters."""

import torch
import torch.nn as nn

model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)]).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    x = torch.randn(64, 4096, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)  # here
    scaler.update()
    opt.zero_grad()
