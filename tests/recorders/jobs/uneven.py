"""FSDP2 of a weight with 10 rows: over 4 ranks they get 3, 3, 3 and 1 of them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = nn.Linear(4096, 10, bias=False)
fully_shard(model)
rows = 3 if dist.get_rank() < 3 else 1
assert model.weight.to_local().shape == (rows, 4096)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 4096, device="cuda")).sum().backward()
optimizer.step()
dist.destroy_process_group()
