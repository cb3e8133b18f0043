import functools

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

dist.init_process_group("nccl")
torch.cuda.set_device(0)
m = GPT2LMHeadModel(GPT2Config(n_layer=8, use_cache=False))
m = FSDP(
    m,
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={GPT2Block}),
    mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    device_id=0,
    use_orig_params=True,
)
opt = torch.optim.AdamW(m.parameters(), 1e-4)
for _i in range(3):
    ids = torch.randint(0, 50257, (4, 512)).cuda()
    loss = m(input_ids=ids, labels=ids).loss
    loss.backward()
    m.clip_grad_norm_(1.0)
    opt.step()
    opt.zero_grad()
