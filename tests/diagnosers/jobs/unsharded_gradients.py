"""C11: accumulation without synchronising keeps whole gradients on every rank."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(0)
model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(16)]).cuda()
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    for micro in range(4):
        model.set_requires_gradient_sync(micro == 3)
        model(torch.randn(64, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
