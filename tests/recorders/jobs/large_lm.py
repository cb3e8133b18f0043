"""A 3.4B transformer LM as the same course teaches it later: rsqrt norms, `torch.where` masks, torch's own AdamW.

Written from the memory traces of such jobs, to compare full training steps, or passes without gradients, with them.

    python large_lm.py [--context 512] [--forward TIMES]
    python large_lm.py --size small --batch 32 --context 256 --own-loss 3
    python large_lm.py --size small --batch 1 --context 64 --vocab 50257 --own-adamw 3 --compile
"""

import argparse
import math

import torch
import torch.nn.functional as F
from lm_parts import Embedding, Linear
from torch import nn

SIZES = {"small": (768, 12, 12, 3072), "large": (1280, 20, 36, 5120), "xl": (2560, 32, 32, 10_240)}
parser = argparse.ArgumentParser()
parser.add_argument("--context", type=int, default=512)
parser.add_argument("--size", choices=SIZES, default="xl")
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--vocab", type=int, default=10_000)
parser.add_argument("--compile", action="store_true", help="in the graphs that the recorded job broke into")
parser.add_argument("--own-loss", type=int, default=0, help="so many backward passes of a hand-written loss")
parser.add_argument("--own-adamw", type=int, default=0, help="so many steps of a hand-written loss and optimizer")
parser.add_argument("--graphs", type=int, default=0, help="so many passes whose graphs are kept until the next")
parser.add_argument("--forward", type=int, default=0, help="so many passes without gradients, instead of two steps")
args = parser.parse_args()
CONTEXT, BATCH, VOCAB = args.context, args.batch, args.vocab
WIDTH, HEADS, LAYERS, HIDDEN = SIZES[args.size]


@torch.compiler.disable
def graph_break():
    """Where the recorded job's compiled code ended and began anew."""


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
        if args.graphs or args.compile:
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
        positions = torch.arange(x.shape[1], device=x.device) if args.graphs or args.compile else None
        graph_break()
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
        normed = self.norm1(x)
        graph_break()
        mixed = self.attention(normed)
        del normed
        graph_break()
        x = x + mixed
        fed = self.feed_forward(self.norm2(x))
        return x + fed


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding(VOCAB, WIDTH)
        rotary = Rotary(WIDTH // HEADS)
        self.blocks = nn.ModuleList(Block(rotary) for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.head = Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        x = self.embedding(tokens)
        graph_break()
        for block in self.blocks:
            x = block(x)
            graph_break()
        x = self.norm(x)
        graph_break()
        return self.head(x)


def log_softmax(x):
    top = torch.max(x, dim=-1, keepdim=True)[0]
    shifted = x - top
    return shifted - torch.log(torch.sum(torch.exp(shifted), dim=-1, keepdim=True))


def cross_entropy(logits, target):
    surprise = -log_softmax(logits)
    return torch.gather(surprise, -1, target.unsqueeze(-1)).mean()


class AdamW(torch.optim.Optimizer):
    """The moments of the step before live until the next parameter takes their names."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.001})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                grad = p.grad.data
                step = state.get("step", 1)
                m = state.get("m", torch.zeros_like(grad))
                v = state.get("v", torch.zeros_like(grad))
                next_m = 0.9 * m + 0.1 * grad
                next_v = 0.99 * v + 0.01 * torch.square(grad)
                rate = group["lr"] * math.sqrt(1 - 0.99**step) / (1 - 0.9**step)
                p.data -= rate * next_m / (torch.sqrt(next_v) + 1e-8)
                p.data -= group["lr"] * 0.01 * p.data
                state["m"], state["v"], state["step"] = next_m, next_v, step + 1


def step_by_hand():
    optimizer.zero_grad()
    logits = model(tokens)
    loss = cross_entropy(logits, targets)
    loss.backward()
    optimizer.step()


def step_of_new_tokens():
    tokens, targets = (torch.randint(0, VOCAB, (BATCH, CONTEXT)).to("cuda") for _ in range(2))
    logits = model(tokens)
    loss = cross_entropy(logits, targets)
    loss.backward()  # onto the gradients of the steps before
    optimizer.step()


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
elif args.own_loss:
    for _ in range(args.own_loss):
        logits = model(tokens)
        loss = cross_entropy(logits, targets)
        loss.backward()
        torch.cuda.synchronize()
elif args.own_adamw:
    optimizer = AdamW(model.parameters())
    if args.compile:
        model = torch.compile(model)
    for _ in range(args.own_adamw):
        step_of_new_tokens() if args.compile else step_by_hand()
elif args.graphs:
    for _ in range(args.graphs):
        logits = model(tokens)
else:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        run_step()
torch.cuda.synchronize()
