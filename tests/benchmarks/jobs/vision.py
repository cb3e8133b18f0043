"""One network of timm trained on random images, with the switches that published memory figures turn.

oomdoc run --gpu a100-40gb vision.py --model resnet50 --batch 32 --optimizer adam
"""

import argparse
from contextlib import nullcontext

import timm_anyway  # before timm
import timm
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="resnet50")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--classes", type=int, default=1000)
parser.add_argument(
    "--optimizer",
    choices=["adam", "adam-fused", "adamw-fused", "sgd", "adamw-8bit", "adamw-4bit", "adamw-fp8", "adamw-8bit-bnb"],
    default="adam",
)
parser.add_argument("--offload", choices=["states", "gradients"], help="by torchao's CPUOffloadOptimizer")
parser.add_argument("--precision", choices=["float", "bf16", "autocast"], default="float")
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--benchmark", action="store_true", help="torch.backends.cudnn.benchmark")
args = parser.parse_args()

torch.backends.cudnn.benchmark = args.benchmark
sized = {"img_size": args.size} if args.model.startswith("vit") else {}
model = timm.create_model(args.model, num_classes=args.classes, **sized).cuda()
if args.precision == "bf16":
    model.bfloat16()
if args.recompute:
    model.set_grad_checkpointing()
if args.compile:
    model.compile()


def made(name: str, parameters: object) -> torch.optim.Optimizer:
    kind, _, how = name.partition("-")
    kind = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}[kind]
    if how == "8bit-bnb":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters)
    if how in ("8bit", "4bit", "fp8"):
        import torchao.optim

        return getattr(torchao.optim, kind + how.capitalize())(parameters)
    options = {"fused": True} if how else {"lr": 1e-3}
    if args.offload:
        from torchao.optim import CPUOffloadOptimizer

        off = args.offload == "gradients"
        return CPUOffloadOptimizer(parameters, getattr(torch.optim, kind), offload_gradients=off, **options)
    return getattr(torch.optim, kind)(parameters, **options)


optimizer = made(args.optimizer, model.parameters())
dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
for _ in range(4):
    images = torch.randn(args.batch, 3, args.size, args.size, device="cuda", dtype=dtype)
    labels = torch.randint(args.classes, (args.batch,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16) if args.precision == "autocast" else nullcontext():
        loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"allocated: {torch.cuda.max_memory_allocated()} bytes")  # noqa: T201  (a job)
print(f"reserved: {torch.cuda.max_memory_reserved()} bytes")  # noqa: T201
