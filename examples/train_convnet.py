"""Train a ResNet-like convnet on random images with fp16 autocast and a GradScaler.

    python train_convnet.py --batch-size 128
"""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, width_in, width_out, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width_out),
        )
        self.short = nn.Identity()
        if stride != 1 or width_in != width_out:
            self.short = nn.Sequential(nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.short(x))


def resnet(depths=(3, 4, 6, 3), classes=1000):
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for stage, depth in enumerate(depths):
        for index in range(depth):
            layers.append(Residual(width, 64 * 2**stage, 2 if stage and index == 0 else 1))
            width = 64 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    model = resnet().to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(args.device)
    images = torch.randn(2 * args.batch_size, 3, args.image, args.image)
    labels = torch.randint(1000, (2 * args.batch_size,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True)

    step = 0
    while step < args.steps:
        for x, y in loader:
            x = x.to(args.device, non_blocking=True).contiguous(memory_format=torch.channels_last)
            y = y.to(args.device)
            with torch.autocast(device_type=args.device, dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if step >= args.steps:
                break
    print(f"done: {step} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
