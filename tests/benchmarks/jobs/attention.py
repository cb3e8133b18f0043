"""Attention with one head, written out, over batches of 8: forward passes, then backward passes with the graph kept.

oomdoc run --gpu a100-80gb-pcie attention.py --length 4096 --width 64
"""

import argparse
import math

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--length", type=int, default=4096)
parser.add_argument("--width", type=int, default=64)
args = parser.parse_args()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the shares, with each step under a name of its own."""
    scores = q @ k.transpose(-2, -1)
    scaled = scores / math.sqrt(q.shape[-1])
    shares = torch.softmax(scaled, dim=-1)
    return shares @ v, shares


q, k, v = (torch.randn(8, args.length, args.width, device="cuda", requires_grad=True) for _ in range(3))
for _ in range(2):
    out, _ = attend(q, k, v)
    out.sum().backward()
    q.grad = k.grad = v.grad = None
torch.cuda.reset_peak_memory_stats()
for _ in range(3):
    out, _ = attend(q, k, v)
print(f"before: {torch.cuda.memory_allocated()} bytes")  # noqa: T201  (a job)
out, _ = attend(q, k, v)
loss = out.sum()
for _ in range(3):
    loss.backward(retain_graph=True)
print(f"allocated: {torch.cuda.max_memory_allocated()} bytes")  # noqa: T201
