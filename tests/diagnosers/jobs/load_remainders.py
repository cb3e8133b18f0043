"""C22: each weight settles in the segment of its own conversion, and leaves a hole that no other fits."""

import torch

MIB = 1 << 18
weights = []
for _ in range(16):
    raw = torch.empty(530 * MIB, device="cuda")
    del raw
    weights.append(torch.empty(270 * MIB, device="cuda"))  # here
    raw = None
torch.empty(530 * MIB, device="cuda")
