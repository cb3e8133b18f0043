"""Probabilities of the whole validation set are kept on the GPU until the metric is computed."""

import torch
import torch.nn as nn


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    all_probs, all_targets = [], []
    for images, masks in loader:
        images, masks = images.to("cuda"), masks.to("cuda")
        logits = model(images)
        all_probs.append(torch.softmax(logits, dim=1))  # here
        all_targets.append(masks)
    probs, targets = torch.cat(all_probs), torch.cat(all_targets)
    return (probs.argmax(1) == targets).float().mean()


model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 21, 1)).cuda()
loader = [(torch.randn(8, 3, 256, 256), torch.randint(0, 21, (8, 256, 256))) for _ in range(40)]
evaluate(model, loader)
