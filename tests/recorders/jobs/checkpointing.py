"""Activation checkpointing, reentrant and not: what is kept is the input of each block."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

BATCH, WIDTH, DEPTH = 64, 1024, 8
reentrant = sys.argv[1] == "reentrant"
blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(DEPTH))
blocks.cuda()


def forward(x, use):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=reentrant) if use else block(x)
    return x


kept = {}
for use in (False, True):
    for _ in range(2):
        x = torch.randn(BATCH, WIDTH, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        y = forward(x, use)
        kept[use] = torch.cuda.memory_allocated() - before
        y.sum().backward()
        del x, y
        blocks.zero_grad()
# each block keeps for backward: its input (the previous block's output), the hidden layer before and after GELU
assert kept[True] == DEPTH * 4 * BATCH * WIDTH, kept
assert kept[False] == DEPTH * 4 * BATCH * (WIDTH + 8 * WIDTH), kept
x = torch.randn(BATCH, WIDTH, device="cuda", requires_grad=True)
checkpoint_sequential(list(blocks), 4, x, use_reentrant=reentrant).sum().backward()
print(kept)
