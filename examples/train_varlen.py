"""Train a transformer encoder on sequences of every length, longest batches somewhere in the middle.

    python train_varlen.py --max-length 4096
"""

import argparse
import random

import torch
import torch.nn as nn


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--max-length", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    rng = random.Random(0)
    layer = nn.TransformerEncoderLayer(args.width, args.width // 64, 4 * args.width, batch_first=True)
    model = nn.TransformerEncoder(layer, args.layers).to(args.device)
    head = nn.Linear(args.width, args.classes).to(args.device)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    history = []
    for step in range(args.steps):
        length = rng.randint(args.max_length // 8, args.max_length)
        x = torch.randn(args.batch_size, length, args.width, device=args.device)
        y = torch.randint(args.classes, (args.batch_size,), device=args.device)
        features = model(x)
        loss = nn.functional.cross_entropy(head(features.mean(1)), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # keep the pooled features of every batch for the retrieval metric computed at the end
        history.append(features.detach().mean(1))
    print(f"done: {len(history)} batches")


if __name__ == "__main__":
    main()
