"""Four equal linear blocks under FSDP2, for counting shards and gathered parameters by hand."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

WIDTH = 1024
dist.init_process_group("nccl")
torch.cuda.set_device(0)
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))).cuda()
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.ones(8, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
