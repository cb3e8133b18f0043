import torch
import torch.nn as nn

model = nn.Sequential(
    *[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.GELU())], nn.Linear(1024, 10)
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for _ in range(5):
    x, y = torch.randn(512, 1024, device="cuda"), torch.randint(10, (512,), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
