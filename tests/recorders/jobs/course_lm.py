"""A small transformer LM as a course teaches it: einsum, RMSNorm, SwiGLU, rotary positions, a hand-written AdamW.

Written from the memory trace of such a job (sizes, operations, order), to compare a virtual run with a real one.

    python course_lm.py --context 150 [--train] [--autocast]
"""

import argparse
import math

import torch
from torch import nn

VOCAB, WIDTH, HEADS, LAYERS, HIDDEN, BATCH = 10_000, 512, 16, 4, 1344, 10


class Linear(nn.Module):
    def __init__(self, fan_in, fan_out, device):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in, device=device))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        return torch.einsum("abc,dc->abd", x, self.weight)


class Embedding(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCAB, WIDTH, device=device))
        nn.init.normal_(self.weight)

    def forward(self, tokens):
        return self.weight[tokens]


class RMSNorm(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, device=device))

    def forward(self, x):
        rms = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-5)
        return x / rms * self.weight


class Rotary(nn.Module):
    def __init__(self, width, longest):
        super().__init__()
        angle = torch.outer(torch.arange(longest).float(), 10_000 ** (-torch.arange(0, width, 2).float() / width))
        self.cos, self.sin = angle.cos(), angle.sin()  # kept on the host

    def forward(self, x, positions):
        cos = self.cos[positions].to(x.device)
        sin = self.sin[positions].to(x.device)
        first = x[..., 0::2] * cos - x[..., 1::2] * sin
        second = x[..., 0::2] * sin + x[..., 1::2] * cos
        return torch.stack([first, second], dim=-1).flatten(-2)


def softmax(x, dim):
    top = torch.max(x, dim=dim, keepdim=True)[0]
    return torch.exp(x - top) / torch.sum(torch.exp(x - top), dim=dim, keepdim=True)


def attend(q, k, v, mask):
    mask = mask.to(q.device)
    scores = torch.einsum("abcd,abed->abce", q, k)
    scaled = scores / torch.sqrt(torch.tensor(q.shape[-1]).to(q.device))
    scaled.masked_fill_(~mask.bool(), -math.inf)
    share = softmax(scaled, -1)
    return torch.einsum("abcd,abde->abce", share, v)


class Attention(nn.Module):
    def __init__(self, longest, device):
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(WIDTH, WIDTH, device) for _ in range(4))
        self.rotary = Rotary(WIDTH // HEADS, longest)

    def forward(self, x):
        length = x.shape[1]
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (t.reshape(BATCH, length, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        positions = torch.arange(length)
        q = self.rotary(q, positions)
        k = self.rotary(k, positions)
        mask = torch.tril(torch.ones(length, length))
        y = attend(q, k, v, mask)
        y = y.transpose(1, 2).reshape(BATCH, length, WIDTH)
        return self.out(y)


class SwiGLU(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.gate, self.down, self.up = (
            Linear(WIDTH, HIDDEN, device),
            Linear(HIDDEN, WIDTH, device),
            Linear(WIDTH, HIDDEN, device),
        )

    def forward(self, x):
        gate = self.gate(x)
        gate = gate * torch.sigmoid(gate)
        return self.down(gate * self.up(x))


class Block(nn.Module):
    def __init__(self, longest, device):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(device), RMSNorm(device)
        self.attention = Attention(longest, device)
        self.feed_forward = SwiGLU(device)

    def forward(self, x):
        normed1 = self.norm1(x)
        mixed = self.attention(normed1)
        x = x + mixed
        normed2 = self.norm2(x)
        fed = self.feed_forward(normed2)
        return x + fed


class LM(nn.Module):
    def __init__(self, longest, device):
        super().__init__()
        self.embedding = Embedding(device)
        self.blocks = nn.ModuleList(Block(longest, device) for _ in range(LAYERS))
        self.norm = RMSNorm(device)
        self.head = Linear(WIDTH, VOCAB, device)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class CrossEntropy(nn.Module):
    def forward(self, logits, target):
        top = torch.max(logits, dim=-1, keepdim=True)[0]
        log_share = (logits - top) - torch.log(torch.sum(torch.exp(logits - top), dim=-1, keepdim=True))
        chosen = torch.zeros_like(log_share).scatter_(1, target.unsqueeze(1), 1)
        return -(log_share * chosen).sum() / logits.shape[0]


class AdamW:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.m, self.v = [], []
        for p in self.parameters:
            self.m.append(torch.zeros_like(p.data))
            self.v.append(torch.zeros_like(p.data))

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    def step(self):
        for i, p in enumerate(self.parameters):
            m = self.m[i]
            self.m[i] = 0.9 * m + 0.1 * p.grad.data
            v = self.v[i]
            self.v[i] = 0.99 * v + 0.01 * p.grad.data**2
            p.data = p.data - 0.001 * (self.m[i] / (torch.sqrt(self.v[i]) + 1e-8))
            p.data = p.data - 0.00001 * p.data


parser = argparse.ArgumentParser()
parser.add_argument("--context", type=int, default=150)
parser.add_argument("--train", action="store_true")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--iterations", type=int, default=3)
args = parser.parse_args()
model = LM(256, "cuda")
optimizer = AdamW(model.parameters()) if args.train else None
criterion = CrossEntropy()
tokens = torch.randint(0, VOCAB, (BATCH, args.context)).to("cuda")
target = torch.randint(0, VOCAB, (BATCH,)).to("cuda") if args.train else None
autocast = torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.autocast)
if args.train:
    with autocast:  # around the loop: the weights are cast once, and the casts grow stale, as in the recorded job
        for _ in range(args.iterations):
            optimizer.zero_grad()
            y = model(tokens)
            loss = criterion(y[:, -1, :], target)
            loss.backward()
            optimizer.step()
else:
    for _ in range(args.iterations):
        with autocast:
            model(tokens)
print(torch.cuda.max_memory_allocated())  # noqa: T201  (a job)
