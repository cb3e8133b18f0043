"""A 129M transformer LM under no_grad: norms by einsum, rotary positions of each layer by halves, `mask == 0`.

Written from the memory trace of such a job (sizes, operations, order), to compare a virtual run with a real one.
"""

import math

import torch
from lm_parts import Embedding, Linear
from torch import nn

VOCAB, WIDTH, HEADS, LAYERS, HIDDEN, BATCH, LENGTH = 10_000, 768, 12, 12, 3072, 4, 128


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        square = torch.einsum("abc,abc->ab", x, x)
        square = square / WIDTH + 1e-5
        root = torch.sqrt(square)
        return x / root.unsqueeze(-1) * self.weight


class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        angle = torch.outer(torch.arange(LENGTH).float(), 10_000 ** (-torch.arange(0, width, 2).float() / width))
        angle = angle.repeat_interleave(2, dim=-1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def turned(self, x):
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)

    def forward(self, x, positions):
        cos = self.cos[positions]
        sin = self.sin[positions]
        return x * cos + self.turned(x) * sin


def softmax(x):
    top = torch.max(x, dim=-1, keepdim=True).values
    powers = torch.exp(x - top)
    total = torch.sum(powers, dim=-1, keepdim=True)
    return powers / total


def attend(q, k, v, mask):
    scores = torch.einsum("abcd,abed->abce", q, k)
    scores = scores / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(mask == 0, float("-inf"))
    shares = softmax(scores)
    return torch.einsum("abce,abed->abcd", shares, v)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotary = Rotary(WIDTH // HEADS)

    def forward(self, x, positions):
        q, k, v = self.q(x), self.k(x), self.v(x)
        q = q.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k = k.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        v = v.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        q = self.rotary(q, positions)
        k = self.rotary(k, positions)
        mask = torch.tril(torch.ones(LENGTH, LENGTH, device=x.device)).bool()
        mixed = attend(q, k, v, mask)
        mixed = mixed.transpose(1, 2).reshape(x.shape)
        return self.out(mixed)


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.down, self.up = Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH), Linear(WIDTH, HIDDEN)

    def forward(self, x):
        gate = self.gate(x)
        up = self.up(x)
        return self.down(gate * torch.sigmoid(gate) * up)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.feed_forward = RMSNorm(), Attention(), RMSNorm(), SwiGLU()

    def forward(self, x, positions):
        normed = self.norm1(x)
        mixed = self.attention(normed, positions)
        between = x + mixed
        normed_again = self.norm2(between)
        fed = self.feed_forward(normed_again)
        return between + fed


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(), Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        x = self.embedding(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        for block in self.blocks:
            x = block(x, positions)
        normed = self.norm(x)
        return self.head(normed)


model = LM().to("cuda")
tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), device="cuda")
with torch.no_grad():
    for _ in range(3):
        model(tokens)
        torch.cuda.synchronize()
