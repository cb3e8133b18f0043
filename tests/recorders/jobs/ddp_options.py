"""DDP in its variants, each counted: buckets, gradients as their views, no_sync, static graph; hooks, join, ZeRO."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
WIDTH, LAYERS = 1024, 8
WEIGHT = 4 * WIDTH * WIDTH


def network():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).cuda()


def held():
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def step(model, accumulate):
    for micro in range(2):
        last = micro == 1 or not accumulate
        with contextlib.nullcontext() if last else model.no_sync():
            model(torch.randn(4, WIDTH, device="cuda")).sum().backward()


views, static = {"gradient_as_bucket_view": True}, {"static_graph": True}
for options in ({}, views, static, {"find_unused_parameters": True}, {**views, **static, "bucket_cap_mb": 8}):
    start = held()
    model = DDP(network(), **options)
    assert held() - start in range(2 * LAYERS * WEIGHT, 2 * LAYERS * WEIGHT + 1024)  # parameters and buckets
    for _ in range(3):
        step(model, accumulate="static_graph" not in options)
    gradients = 0 if "gradient_as_bucket_view" in options else LAYERS * WEIGHT
    assert held() - start in range(2 * LAYERS * WEIGHT + gradients, 2 * LAYERS * WEIGHT + gradients + 1024)
    del model
model = DDP(network())
model.register_comm_hook(None, default_hooks.bf16_compress_hook)
with model.join():
    model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
before = held()
optimizer.step()
assert held() - before == 2 * LAYERS * WEIGHT // dist.get_world_size()
convolution = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
synchronised = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(convolution).cuda())
synchronised(torch.randn(4, 3, 16, 16, device="cuda")).sum().backward()
assert all(p.grad is not None for p in synchronised.parameters())
dist.destroy_process_group()
