"""A 3.4B transformer LM as the same course teaches it later: rsqrt norms, `torch.where` masks, torch's own AdamW.

Written from the memory traces of such jobs, to compare full training steps, or passes without gradients, with them.

    python large_lm.py [--context 512] [--forward TIMES]
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, HEADS, LAYERS, HIDDEN, BATCH = 10_000, 2560, 32, 32, 10_240, 4
parser = argparse.ArgumentParser()
parser.add_argument("--context", type=int, default=512)
parser.add_argument("--graphs", type=int, default=0, help="so many passes whose graphs are kept until the next")
parser.add_argument("--forward", type=int, default=0, help="so many passes without gradients, instead of two steps")
args = parser.parse_args()
CONTEXT = args.context


class Linear(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in))

    def forward(self, x):
        return torch.einsum("abc,dc->abd", x, self.weight)


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCAB, WIDTH))

    def forward(self, tokens):
        return self.weight[tokens]


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return self.weight * x


class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        angle = torch.outer(torch.arange(CONTEXT).float(), 10_000 ** (-torch.arange(0, width, 2).float() / width))
        if args.graphs:
            self.register_buffer("both", torch.stack([angle.cos(), angle.sin()]), persistent=False)
        else:
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x, positions):
        first, second = x.unflatten(-1, (-1, 2)).movedim(-1, 0)
        if positions is None:
            cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        else:
            cos, sin = self.both[:, positions]
        turned_first = cos * first - sin * second
        turned_second = sin * first + cos * second
        return torch.stack([turned_first, turned_second], dim=-1).flatten(-2)


def softmax(x):
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def attend(q, k, v, mask):
    scores = torch.einsum("abcd,abed->abce", q, k) / math.sqrt(q.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    shares = softmax(scores)
    return torch.einsum("abcd,abde->abce", shares, v)


class Attention(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotary = rotary

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        positions = torch.arange(x.shape[1], device=x.device) if args.graphs else None
        q = self.rotary(q, positions)
        k = self.rotary(k, positions)
        position = torch.arange(x.shape[1], device=x.device)
        mask = position[:, None] >= position[None, :]
        mixed = attend(q, k, v, mask)
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        return self.out(mixed)


def swish(x):
    return x * torch.sigmoid(x)


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.down, self.up = Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH), Linear(WIDTH, HIDDEN)

    def forward(self, x):
        return self.down(swish(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.attention, self.feed_forward = Attention(rotary), SwiGLU()
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()

    def forward(self, x):
        mixed = self.attention(self.norm1(x))
        x = x + mixed
        fed = self.feed_forward(self.norm2(x))
        return x + fed


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding()
        rotary = Rotary(WIDTH // HEADS)
        self.blocks = nn.ModuleList(Block(rotary) for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.head = Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def run_step():
    optimizer.zero_grad(set_to_none=True)
    logits = model(tokens)
    loss = F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))
    loss.backward()
    optimizer.step()


model = LM().to("cuda")
tokens = torch.randint(0, VOCAB, (BATCH, CONTEXT), device="cuda")
targets = torch.randint(0, VOCAB, (BATCH, CONTEXT), device="cuda")
if args.forward:
    with torch.no_grad():
        for _ in range(args.forward):
            model(tokens)
elif args.graphs:
    for _ in range(args.graphs):
        logits = model(tokens)
else:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        run_step()
torch.cuda.synchronize()
