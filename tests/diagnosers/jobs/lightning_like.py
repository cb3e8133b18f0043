"""A hand-made trainer that validates with gradients on, and keeps what each validation step returns."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*[nn.Sequential(nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1), nn.ReLU()) for i in range(6)])
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(self.net(x).mean((2, 3)))

    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch):
        x, y = batch
        return {"val_loss": F.cross_entropy(self(x), y)}


class Trainer:
    def fit(self, model, train, val):
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            for batch in train:
                optimizer.zero_grad()
                model.training_step([t.cuda() for t in batch]).backward()
                optimizer.step()
            outputs = []
            for batch in val:
                outputs.append(model.validation_step([t.cuda() for t in batch]))  # here
            print(torch.stack([o["val_loss"] for o in outputs]).mean())


batches = [(torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))) for _ in range(12)]
Trainer().fit(LitModel().cuda(), batches[:4], batches)
