"""DistributedDataParallel as torchrun would start it; buckets hold a copy of every gradient."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group(backend="nccl", init_method="env://")
rank, world = dist.get_rank(), dist.get_world_size()
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 1024, bias=False)).cuda(local)
weights = 2 * 4 * 1024 * 1024
assert torch.cuda.memory_allocated() == weights
model = DistributedDataParallel(model, device_ids=[local])
assert torch.cuda.memory_allocated() == 2 * weights, torch.cuda.memory_allocated()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64 * world, 1024))
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, batch_size=16, sampler=sampler):
        loss = model(x.cuda(local)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach())
with model.no_sync():
    model(x.cuda(local)).sum().backward()
del loss
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == 3 * weights, torch.cuda.memory_allocated()  # parameters, buckets, gradients
model.zero_grad()
views = DistributedDataParallel(model.module, device_ids=[local], gradient_as_bucket_view=True, static_graph=True)
for _ in range(2):
    views(x.cuda(local)).sum().backward()
if rank == 0:
    torch.save(model.module.state_dict(), os.devnull)
dist.barrier()
dist.destroy_process_group()
