"""C45: tensors of the whole model wait in a list while shards are filled from them."""

import torch

shards, waiting = [], []


def load_state_dict(sizes):
    for size in sizes:
        full = torch.empty(size, device="cuda")  # here
        shards.append(full[: size // 8].clone())
        waiting.append(full)
        if len(waiting) == 50:
            waiting.clear()


load_state_dict([1 << 22] * 120)
