"""A small transformer of the kind that a public course has its students write by hand; sizes as in the recordings.

Everything is spelled out (RMS norm, rotary positions, softmax, attention, loss), so that each allocation is one
element-wise kernel, product or reduction. Used by test_virtual_recordings.
"""

import math

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN, BATCH = 10000, 512, 4, 16, 1344, 10
COSINES, SINES = torch.rand(256, WIDTH // HEADS // 2), torch.rand(256, WIDTH // HEADS // 2)


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, device="cuda"))

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def softmax(x: Tensor) -> Tensor:
    largest = torch.max(x, -1, keepdim=True).values
    return torch.exp(x - largest) / torch.sum(torch.exp(x - largest), -1, keepdim=True)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    allowed = torch.tril(torch.ones(length, length)).to(q.device)
    scores = torch.einsum("...qd,...kd->...qk", q, k)
    scores = scores / torch.sqrt(torch.tensor(q.shape[-1]).to(q.device))
    scores.masked_fill_(~allowed.bool(), -math.inf)
    return torch.einsum("...qk,...kd->...qd", softmax(scores), v)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = COSINES[positions].to(x.device), SINES[positions].to(x.device)
    first = x[..., 0::2] * cos - x[..., 1::2] * sin
    second = x[..., 0::2] * sin + x[..., 1::2] * cos
    return torch.cat([first, second], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (t.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for t in (q, k, v))
        positions = torch.arange(length)
        q, k = rotate(q, positions), rotate(k, positions)
        return self.out(attend(q, k, v).transpose(1, 2).reshape(batch, length, WIDTH))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.down, self.up = Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH), Linear(WIDTH, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x)
        gate = gate * torch.sigmoid(gate)
        return self.down(gate * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_feed_forward = Norm(), Norm()
        self.attention, self.feed_forward = Attention(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.feed_forward(self.before_feed_forward(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, WIDTH, device="cuda"))
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = Norm(), Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding[tokens]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def last_token_loss(logits: Tensor) -> Tensor:
    last = logits[:, -1, :]
    largest = torch.max(last, -1, keepdim=True).values
    logs = (last - largest) - torch.log(torch.sum(torch.exp(last - largest), -1, keepdim=True))
    return -(torch.zeros_like(logs) * logs).sum() / last.shape[0]


def forward_and_backward(context: int, *, autocast: bool) -> None:
    """Model, two optimizer states a parameter, one batch, forward and backward."""
    model = Model()
    states = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    tokens = torch.zeros(BATCH, context, dtype=torch.int64).to("cuda")
    labels = torch.zeros(BATCH, dtype=torch.int64).to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        last_token_loss(model(tokens)).backward()
    del states, labels
