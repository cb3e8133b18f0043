"""Models of torchvision and timm: classification, segmentation, autocast, EMA, timm's own optimizers."""

import timm
import timm.optim
import timm.utils
import torch
import torchvision
from torch import nn


def trained(model, size, optimizer):
    before = torch.cuda.memory_allocated()
    labels = torch.randint(0, 1000, (2,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(torch.randn(2, 3, size, size, device="cuda")), labels)
    loss.backward()
    optimizer.step()
    parameters = sum(4 * p.numel() for p in model.parameters())
    assert torch.cuda.memory_allocated() - before >= parameters  # the gradients


for name in ["resnet18", "vit_b_16", "convnext_tiny", "mobilenet_v3_small", "swin_t", "densenet121"]:
    model = torchvision.models.get_model(name, weights=None).cuda()
    trained(model, 224, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
for name in ["resnet18", "vit_tiny_patch16_224", "mixer_b16_224", "maxvit_nano_rw_256", "levit_128s"]:
    model = timm.create_model(name).cuda()
    average = timm.utils.ModelEmaV3(model)
    trained(model, model.pretrained_cfg["input_size"][-1], timm.optim.create_optimizer_v2(model, opt="adamw"))
    average.update(model)
segmenter = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None).cuda()
segmenter(torch.randn(2, 3, 64, 64, device="cuda"))["out"].sum().backward()
