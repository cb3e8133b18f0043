"""Squares of every window of an image.

https://github.com/pytorch/pytorch/issues/31655
"""

import torch

x = torch.rand(1, 3, 300, 300).cuda()
t = torch.rand(1, 3, 40, 40).cuda()
y = x.unfold(2, 40, 1).unfold(3, 40, 1)
ssd = -2 * torch.einsum("xcijkl,xckl->xcij", y, t)
ssd += (y * y).sum((-1, -2))  # here
