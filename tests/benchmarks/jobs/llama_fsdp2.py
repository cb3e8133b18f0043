"""Llama-3 from its config under FSDP2 and AdamW, batch 1 x 4096, bfloat16; tells the CPU time of its steps.

With a third argument, `meta`, the whole model on torch's own meta device instead, without anything of oomdoc.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"8b": (4096, 14336, 32, 32), "405b": (16384, 53248, 126, 128)}
hidden, intermediate, layers, heads = SIZES[sys.argv[1]]
device = sys.argv[3] if len(sys.argv) > 3 else "cuda"
config = LlamaConfig(
    hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=heads,
    num_key_value_heads=8, vocab_size=128256, use_cache=False, tie_word_embeddings=False,
)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
if sys.argv[1] == "405b":  # or it would not fit
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = checkpoint_wrapper(layer)
given = {}
if device == "cuda":
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
else:  # transformers reads the values of a mask that it makes by itself
    model = model.bfloat16()
    given["attention_mask"] = torch.empty(1, 1, 4096, 4096, dtype=torch.bool, device=device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


seconds, memory, events = [], [], []
for step in range(4):
    start = time.process_time()
    tokens = torch.randint(config.vocab_size, (1, 4096), device=device)
    model(input_ids=tokens, labels=tokens, **given).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.process_time() - start)
    memory.append(resident())
    stats = torch.cuda.memory_stats() if device == "cuda" else {}
    events.append(stats.get("allocation.all.allocated", 0) + stats.get("allocation.all.freed", 0))
    grown = (memory[-1] - memory[1]) / max(1, events[-1] - events[1]) if step > 1 else 0.0
    with open(sys.argv[2], "w") as file:
        json.dump({"step_s": min(seconds), "events": events[-1], "bytes_per_event": grown}, file)
