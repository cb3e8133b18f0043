"""Boxes are matched to anchors on the GPU: every anchor against every box.

https://github.com/facebookresearch/maskrcnn-benchmark/issues/18
"""

import torch
import torch.nn as nn


def box_iou(anchors, boxes):
    lt = torch.max(anchors[:, None, :2], boxes[None, :, :2])  # here
    rb = torch.min(anchors[:, None, 2:], boxes[None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    area_a = (anchors[:, 2] - anchors[:, 0]) * (anchors[:, 3] - anchors[:, 1])
    area_b = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return inter / (area_a[:, None] + area_b[None] - inter)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
        self.head = nn.Conv2d(64, 9, 3, 1, 1)

    def forward(self, images, boxes):
        scores = self.head(self.body(images)).flatten(1)
        anchors = torch.rand(scores.shape[1], 4, device=images.device)
        losses = []
        for score, each in zip(scores, boxes):
            with torch.no_grad():
                best = box_iou(anchors, each).max(dim=1).values
            losses.append(nn.functional.binary_cross_entropy_with_logits(score, best))
        return sum(losses)


model = Detector().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for number in (8, 12, 20, 15, 400):
    images = torch.randn(2, 3, 512, 640).cuda()
    loss = model(images, [torch.rand(number, 4).cuda() for _ in range(2)])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
