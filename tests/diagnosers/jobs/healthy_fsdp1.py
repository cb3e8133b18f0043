"""FullyShardedDataParallel (FSDP1) with mixed precision, wrapping and a full state dict."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

dist.init_process_group("nccl")
world = dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(1024, 4096, bias=False)
        self.down = nn.Linear(4096, 1024, bias=False)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


model = FSDP(
    nn.Sequential(*[Block() for _ in range(3)]),
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    device_id=torch.cuda.current_device(),
    use_orig_params=True,
    limit_all_gathers=True,
)
sharded = 3 * 4 * (2 * 1024 * 4096) // world
assert torch.cuda.memory_allocated() == sharded, (torch.cuda.memory_allocated(), sharded)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
torch._C._cuda_clearCublasWorkspaces()
# the flat gradients live until the next forward; 512 bytes are the zero that clip_grad_norm_ keeps
assert torch.cuda.memory_allocated() == 4 * sharded + 512
with FSDP.state_dict_type(
    model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
):
    state = model.state_dict()
if dist.get_rank() == 0:
    assert state["0.up.weight"].shape == (4096, 1024)
    assert state["0.up.weight"].device.type == "cpu"
dist.destroy_process_group()
