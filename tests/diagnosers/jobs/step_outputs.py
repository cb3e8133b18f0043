"""C40: a trainer keeps what each step returns."""

import torch
import torch.nn as nn


class Trainer:
    def __init__(self, model):
        self.model, self.outputs = model, []
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, x):
        loss = self.model(x.float()).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "labels": x * 2}  # here

    def fit(self):
        for _ in range(12):
            self.outputs.append(self.step(torch.ones(1024, 2400, dtype=torch.int64).cuda()))


Trainer(nn.Linear(2400, 64).cuda()).fit()
