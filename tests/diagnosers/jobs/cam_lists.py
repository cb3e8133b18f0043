"""Grad-CAM appends activations and gradients for every image. https://github.com/jacobgil/pytorch-grad-cam/issues/71"""

import torch
import torch.nn as nn


class ActivationsAndGradients:
    def __init__(self, layer):
        self.activations, self.gradients = [], []
        layer.register_forward_hook(self.save_activation)
        layer.register_full_backward_hook(self.save_gradient)

    def save_activation(self, module, inputs, output):
        self.activations.append(output)

    def save_gradient(self, module, grad_input, grad_output):
        self.gradients.append(grad_output[0])


body = nn.Sequential(
    nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.Conv2d(128, 256, 3, 2, 1)
)
model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000)).cuda().eval()
watch = ActivationsAndGradients(body[-1])
for _ in range(60):
    image = torch.rand(1, 3, 448, 448).cuda()
    out = model(image)  # here
    model.zero_grad()
    out[0, 7].backward()
    weights = watch.gradients[-1].mean((2, 3), keepdim=True)
    cam = (weights * watch.activations[-1]).sum(1).relu().detach().cpu()
