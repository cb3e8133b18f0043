"""C21: lengths that change from step to step leave segments that nothing fits into."""

import torch

MIB = 1 << 18  # floats
state, lengths = [], [64 + (37 * step * step) % 700 for step in range(60)]
for step, length in enumerate(lengths):
    batch = [torch.empty(length * MIB // 4, device="cuda") for _ in range(4)]
    state.append(torch.empty(3 * MIB, device="cuda"))  # here
    del batch
torch.empty(900 * MIB, device="cuda")
