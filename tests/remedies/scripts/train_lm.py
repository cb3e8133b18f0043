# ruff: noqa: T201, N812 - a script as users write them
"""A small language model as a user writes it: argparse, a DataLoader, a loop. Knows nothing of oomdoc."""

import argparse
import json

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--optimizer", default="adamw")
parser.add_argument("--reduction", default="mean")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--zero-by-hand", action="store_true")
parser.add_argument("--no-loader", action="store_true")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--batch-norm", action="store_true")
parser.add_argument("--evaluate", default="never", choices=["never", "with_graph", "left_on"])
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--in-order", action="store_true")
parser.add_argument("--own-sampler", action="store_true")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--depth", type=int, default=4)
args = parser.parse_args()

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
VOCAB, LENGTH = 128, 32


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(args.dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(a.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.mlp(self.norm2(x)))


class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.bn = nn.BatchNorm1d(LENGTH) if args.batch_norm else nn.Identity()
        self.head = nn.Linear(width, VOCAB)
        if args.channels_last:  # a stem as image models have it
            self.stem = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, tokens):
        x = self.embed(tokens)
        if args.channels_last:
            b, t, c = x.shape
            image = x.reshape(b, 4, t, c // 4).contiguous(memory_format=torch.channels_last)
            x = x + self.stem(image).reshape(b, t, c)
        for block in self.blocks:
            x = block(x)
        return self.head(self.bn(x))


device = torch.device(args.device)
model = Model(args.width, args.depth).to(device)
if args.channels_last:
    model = model.to(memory_format=torch.channels_last)
names_before = list(model.state_dict())
tokens = torch.randint(0, VOCAB, (args.batch_size * args.steps, LENGTH + 1))
rows = TensorDataset(tokens[:, :-1], tokens[:, 1:])
loader = DataLoader(rows, batch_size=args.batch_size, shuffle=not args.in_order)
if args.own_sampler:  # each rank draws batches of its own
    share = args.batch_size // torch.distributed.get_world_size()
    loader = DataLoader(rows, batch_size=share, sampler=DistributedSampler(rows, shuffle=False))
if args.no_loader:
    loader = [(t[:, :-1], t[:, 1:]) for t in tokens.split(args.batch_size)]
if args.optimizer == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
elif args.optimizer == "sgd":
    optimizer = torch.optim.SGD([{"params": list(model.parameters())}], lr=0.1, momentum=0.9)
else:
    optimizer = torch.optim.LBFGS(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
parameters = list(model.parameters())

for step, (x, y) in enumerate(loader):
    x, y = x.to(device), y.to(device)
    if args.evaluate != "never":  # forgets no_grad
        model.eval()
        model(x).argmax(-1)
        if args.evaluate == "with_graph":
            model.train()
    if args.zero_by_hand:
        for p in model.parameters():
            p.grad = None
    elif step % args.accumulate == 0:
        optimizer.zero_grad()
    with torch.autocast(args.device, torch.bfloat16, enabled=args.autocast):
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction=args.reduction)
    loss.backward()
    if (step + 1) % args.accumulate == 0:
        clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        scheduler.step()
    print(json.dumps({"loss": loss.item(), "samples": len(x), "dtype": str(logits.dtype)}), flush=True)

model.eval()
with torch.no_grad():
    total = sum(model(x.to(device)).float().square().mean().item() for x, _ in loader)
same_names = names_before == list(model.state_dict())
print(json.dumps({"lr": scheduler.get_last_lr()[0], "eval": total, "same_names": same_names}))
