"""Each step's image is cut from the graph of the last. Twin of perturbed_image.py."""

import torch
import torch.nn as nn

model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 512)
)
model = model.cuda().eval().requires_grad_(False)
target = torch.rand(1, 512).cuda()
image = torch.rand(1, 3, 224, 224).cuda().requires_grad_()
for _ in range(20):
    loss = (model(image) - target).norm()
    (grad,) = torch.autograd.grad(loss, image)
    image = (image - 0.01 * grad).detach().requires_grad_()
