"""Each step's image is made from the last one's, whose graph it keeps. https://github.com/LostOxygen/poison_froggo/issues/1"""

import torch
import torch.nn as nn

model = (
    nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 512),
    )
    .cuda()
    .eval()
)
for p in model.parameters():
    p.requires_grad_(False)
target = torch.rand(1, 512).cuda()
base = torch.rand(1, 3, 224, 224).cuda()
image = base.clone().requires_grad_()
for _ in range(100):
    loss = (model(image) - target).norm()  # here
    (grad,) = torch.autograd.grad(loss, image, retain_graph=True, create_graph=True)
    image = image - 0.01 * grad
    image = image + 0.1 * (base - image)
