"""Train a classifier and report the average validation loss at the end. Memory grows at every step: can you see why?

    python train_leak.py --batch-size 4096
"""

import argparse

import torch
import torch.nn as nn


def batch(size, width, device):
    return torch.randn(size, width, device=device), torch.randint(10, (size,), device=device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    layers = []
    for _ in range(args.depth):
        layers += [nn.Linear(args.width, args.width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(args.width, 10)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    validation_loss = 0.0
    for _ in range(args.steps):
        inputs, labels = batch(args.batch_size, args.width, args.device)
        loss = criterion(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        inputs, labels = batch(args.batch_size, args.width, args.device)
        validation_loss += criterion(model(inputs), labels)
    print(f"average validation loss {validation_loss.item() / args.steps:.4f}")


if __name__ == "__main__":
    main()
