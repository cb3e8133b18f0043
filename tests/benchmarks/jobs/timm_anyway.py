"""Makes timm and Transformers importable where torchvision's wheel for CUDA stands beside a CPU build of torch.

Its library does not load then, and its Python part, which is all that they need, asks for two operations by name.
"""

import sys

import torch

try:
    import torchvision
except ImportError:
    pass  # Transformers does without
except RuntimeError:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
