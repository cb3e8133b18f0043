"""Train a transformer encoder on sequences of every length, with a memory bank of the last batches' features.

    python train_varlen.py --max-length 4480
"""

import argparse
import random
from collections import deque

import torch
import torch.nn as nn


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--min-length", type=int, default=2048)
    parser.add_argument("--max-length", type=int, default=4480)
    parser.add_argument("--batch-size", type=int, default=5)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--bank", type=int, default=12, help="batches whose features the memory bank keeps")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    rng = random.Random(0)
    layer = nn.TransformerEncoderLayer(args.width, args.width // 64, 4 * args.width, batch_first=True)
    model = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False).to(args.device)
    head = nn.Linear(args.width, args.classes).to(args.device)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    bank = deque(maxlen=args.bank)
    for step in range(args.steps):
        length = rng.randint(args.min_length, args.max_length)
        x = torch.randn(args.batch_size, length, args.width, device=args.device)
        y = torch.randint(args.classes, (args.batch_size,), device=args.device)
        features = model(x)
        loss = nn.functional.cross_entropy(head(features.mean(1)), y)
        bank.append(features.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"done: {args.steps} steps, {len(bank)} batches in the bank")


if __name__ == "__main__":
    main()
