"""Train a Llama with FSDP2, one process per GPU.

    torchrun --nproc-per-node 8 train_fsdp2.py --layers 32 --width 4096
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))

    config = LlamaConfig(
        hidden_size=args.width,
        intermediate_size=args.width * 7 // 2,
        num_hidden_layers=args.layers,
        num_attention_heads=args.width // 128,
        num_key_value_heads=max(1, args.width // 512),
        vocab_size=128256,
        max_position_embeddings=args.length,
        use_cache=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    model.init_weights()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(args.steps):
        tokens = torch.randint(config.vocab_size, (args.batch_size, args.length), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
