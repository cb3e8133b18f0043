# ruff: noqa: T201 - a script as users write them
"""A Hugging Face Llama from a config in a plain loop, float32. Knows nothing of oomdoc."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--depth", type=int, default=6)
parser.add_argument("--length", type=int, default=512)
parser.add_argument("--vocab", type=int, default=32000)
args = parser.parse_args()

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=args.vocab,
    hidden_size=args.width,
    intermediate_size=4 * args.width,
    num_hidden_layers=args.depth,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=args.length,
)
model = LlamaForCausalLM(config).to(args.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(0, args.vocab, (args.batch_size * args.steps, args.length))
model.train()
for (batch,) in DataLoader(TensorDataset(tokens), batch_size=args.batch_size):
    batch = batch.to(args.device)
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.4f}", flush=True)
