"""C60: the cache has what the plan gave it; the sampler's fp32 copy of the logits has no room."""

import torch
import torch.nn as nn


class Engine:
    def __init__(self):
        self.model = nn.Sequential(nn.Embedding(50_000, 64), nn.Linear(64, 50_000)).half().cuda()
        self._allocate_kv_cache()

    def _allocate_kv_cache(self):
        self.kv_cache = [torch.zeros(2, 25 << 18, dtype=torch.half, device="cuda") for _ in range(32)]  # cache

    def sample(self, ids):
        logits = self.model(ids)
        return torch.softmax(logits.float(), dim=-1).argmax(dim=-1)  # here


engine = Engine()
with torch.inference_mode():
    for requests in (64, 256, 1024, 4096):
        engine.sample(torch.randint(50_000, (requests,), device="cuda"))
