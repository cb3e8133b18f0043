"""One hand-written attention, forward and backward, made to show where its peak is.

Written from the memory trace of such a job (sizes, operations, order), to compare a virtual run with a real one.
"""

import math

import torch

BATCH, LENGTH, WIDTH = 8, 4096, 16


def softmax(x):
    top = x.max(dim=-1, keepdim=True)[0]
    powers = torch.exp(x - top)
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total


def attend(q, k, v):
    scores = torch.einsum("aqd,akd->aqk", q, k)
    scores = scores / math.sqrt(q.shape[-1])
    shares = softmax(scores)
    return torch.einsum("aqk,akd->aqd", shares, v)


q = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", requires_grad=True)
k = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", requires_grad=True)
v = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", requires_grad=True)
out = attend(q, k, v)
loss = out.sum()
loss.backward()
