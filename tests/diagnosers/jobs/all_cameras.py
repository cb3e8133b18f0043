"""All photographs of the scene lie on the GPU. https://github.com/graphdeco-inria/gaussian-splatting/issues/1009"""

import torch
import torch.nn as nn


class Camera:
    def __init__(self, image, data_device="cuda"):
        self.original_image = image.clamp(0, 1).to(data_device)  # here
        self.original_image *= torch.ones((1, *image.shape[1:]), device=data_device)


cameras = [Camera(torch.rand(3, 600, 800)) for _ in range(100)]
points = nn.Parameter(torch.rand(20_000, 59, device="cuda"))
opt = torch.optim.Adam([points], lr=1e-3)
project = torch.randn(59, 3, device="cuda")
for step in range(20):
    camera = cameras[step % len(cameras)]
    color = (points @ project).mean(0).view(3, 1, 1)
    loss = (color - camera.original_image).abs().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
