import torch
import torch.nn as nn


class LoRA(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, 8, bias=False)
        self.up = nn.Linear(8, width, bias=False)

    def forward(self, x):
        return torch.relu(self.base(x) + self.up(self.down(x)))


model = nn.Sequential(*[LoRA(2048) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(5):
    model(torch.randn(256, 2048, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
