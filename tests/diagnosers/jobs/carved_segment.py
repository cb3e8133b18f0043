"""C20: small tensors that stay settle in the segment of a big one that comes back."""

import torch

kept = []
for _ in range(3):
    big = torch.empty(1000 << 20, dtype=torch.uint8, device="cuda")  # here
    del big
    kept.append([torch.empty(15 << 20, dtype=torch.uint8, device="cuda") for _ in range(30)])
    kept[-1][::2] = [None] * 15
