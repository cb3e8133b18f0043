"""Meshes: hybrid sharding, tensor parallel, CPU offload, gradient accumulation, all-to-all, pipeline messages."""

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
world = dist.get_world_size()
WIDTH = 1024
WEIGHT = 4 * WIDTH * WIDTH


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(self.up(x).relu())


def measured(model, sharded_by, steps=2):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == 3 * 2 * WEIGHT // sharded_by, (torch.cuda.memory_allocated(), sharded_by)


hybrid = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("replicate", "shard"))
model = Block().cuda()
fully_shard(model, mesh=hybrid)
assert torch.cuda.memory_allocated() == 2 * WEIGHT // 4
measured(model, 4)
del model
gc.collect()  # FSDP modules are in reference cycles

mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
model = Block().cuda()
parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
assert isinstance(model.up.weight, DTensor) and model.up.weight.to_local().shape == (WIDTH // 2, WIDTH)
assert torch.cuda.memory_allocated() == 2 * WEIGHT // 2, torch.cuda.memory_allocated()
measured(model, 2)
fully_shard(model, mesh=mesh["dp"])
assert torch.cuda.memory_allocated() == 2 * WEIGHT // world
measured(model, world)
del model
gc.collect()  # FSDP modules are in reference cycles

model = Block()
fully_shard(model, mesh=init_device_mesh("cuda", (world,)), offload_policy=CPUOffloadPolicy())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert all(p.device.type == "cpu" for p in model.parameters())
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()

big = distribute_tensor(torch.randn(64, 64, device="cuda"), mesh["tp"], [Shard(0)])
assert big.redistribute(placements=[Replicate()]).to_local().shape == (64, 64)
assert big.full_tensor().is_cuda

x = torch.randn(world * 8, 16, device="cuda")
y = torch.empty_like(x)
dist.all_to_all_single(y, x)
right, left = (dist.get_rank() + 1) % world, (dist.get_rank() - 1) % world
work = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)])
for each in work:
    each.wait()
dist.broadcast(x, src=0)
objects = [{"step": 3}]
dist.broadcast_object_list(objects, src=0)
gathered = [None] * world
dist.all_gather_object(gathered, dist.get_rank())
dist.destroy_process_group()
