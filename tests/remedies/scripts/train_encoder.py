# ruff: noqa: T201 - a script as users write them
"""A classifier on torch's own TransformerEncoder, with a loss module. Knows nothing of oomdoc."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--depth", type=int, default=6)
parser.add_argument("--length", type=int, default=256)
args = parser.parse_args()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(args.width, 8, 4 * args.width, batch_first=True, norm_first=True)
        self.embed = nn.Linear(64, args.width)
        self.encoder = nn.TransformerEncoder(layer, args.depth, enable_nested_tensor=False)
        self.head = nn.Linear(args.width, 1000)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(dim=1))


torch.manual_seed(0)
model = Classifier().to(args.device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
count = args.batch_size * args.steps
data = TensorDataset(torch.randn(count, args.length, 64), torch.randint(0, 1000, (count,)))
for x, y in DataLoader(data, batch_size=args.batch_size):
    optimizer.zero_grad()
    loss = criterion(model(x.to(args.device)), y.to(args.device))
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}", flush=True)
