"""A Llama from a config under FSDP2, as one rank of many."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
world = dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (world,))
config = LlamaConfig(
    hidden_size=512, intermediate_size=1792, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
    vocab_size=32000, max_position_embeddings=512, use_cache=False, tie_word_embeddings=False,
)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
assert torch.cuda.memory_allocated() == 0
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
model.init_weights()


def padded(n):
    return (n + 511) // 512 * 512


def shard(shape):
    rows = (shape[0] + world - 1) // world  # the first dimension, rounded up to the world's size
    rest = 1
    for size in shape[1:]:
        rest *= size
    return padded(4 * rows * rest)


expected = sum(shard(p.shape) for p in model.parameters())
rotary = torch.cuda.memory_allocated() - expected
assert 0 <= rotary <= 8192, (torch.cuda.memory_allocated(), expected)
total = sum(p.numel() for p in model.parameters())
if world <= 64:  # every dimension is longer than the world: 4 bytes x N / W and padding
    assert abs(expected - 4 * total / world) < 512 * 2 * len(list(model.parameters()))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for step in range(3):
    tokens = torch.randint(config.vocab_size, (1, 512), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
del loss, tokens
torch._C._cuda_clearCublasWorkspaces()
counters = 512 * len(list(model.parameters()))
assert torch.cuda.memory_allocated() - rotary == 3 * expected + counters, (torch.cuda.memory_allocated(), expected)
dist.destroy_process_group()
