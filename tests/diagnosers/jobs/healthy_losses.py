import torch
import torch.nn as nn

model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(12):
    loss = model(torch.randn(1024, 512, device="cuda")).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    with torch.no_grad():
        validation = model(torch.randn(2048, 512, device="cuda")).mean()
