# ruff: noqa: T201 - a script as users write them
"""A language model in a plain float32 loop, with each remedy that people make in the script behind an option."""

import argparse
import contextlib
import copy
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=16, help="of all ranks together")
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--depth", type=int, default=6)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--vocab", type=int, default=8000)
parser.add_argument("--chunks", type=int, default=0, help="of the loss")
parser.add_argument("--lora", type=int, default=0, metavar="RANK")
parser.add_argument("--eight-bit", action="store_true", help="moments of Adam in 8 bits")
parser.add_argument("--fused", action="store_true")
parser.add_argument("--no-foreach", action="store_true")
parser.add_argument("--step-in-backward", action="store_true")
parser.add_argument("--spare", default="none", choices=["none", "cuda", "cpu"], help="a second model, never called")
parser.add_argument("--keep-loss", action="store_true", help="the tensors of each step's loss, with their graphs")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--bucket-view", action="store_true")
parser.add_argument("--zero-1", action="store_true")
parser.add_argument("--fsdp1", default="none", choices=["none", "full", "grad-op"])
parser.add_argument("--no-limit", action="store_true", help="of FSDP1's gathers")
parser.add_argument("--fsdp2", default="none", choices=["none", "blocks", "root"])
parser.add_argument("--offload", action="store_true", help="FSDP2's parameters")
parser.add_argument("--replicas", type=int, default=1, help="of FSDP2's shards")
parser.add_argument("--tensor-parallel", default="none", choices=["none", "plain", "sequence"])
parser.add_argument("--context-parallel", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
elif args.fsdp2 != "none":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Low(nn.Module):
    """A frozen linear layer and two small matrices beside it."""

    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a, self.b = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.layer(x) + self.b(self.a(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (-1, 3, 64)).permute(3, 0, 2, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.width)
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.depth))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, args.vocab, bias=False)

    def forward(self, x, y):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if not args.chunks:
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), y.flatten())

        def part(x, y):
            return nn.functional.cross_entropy(self.head(x), y, reduction="sum")

        pairs = zip(x.flatten(0, 1).chunk(args.chunks), y.flatten().chunk(args.chunks), strict=True)
        return sum(checkpoint(part, a, b, use_reentrant=False) for a, b in pairs) / y.numel()


class AdamW8bit(torch.optim.Optimizer):
    """AdamW with both moments in 8 bits and a float32 scale for 256 values; one parameter after the other."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr, "step": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, group["lr"], group["step"])

    def update(self, p, lr, step):
        """A slice at a time, as a kernel does that unpacks, steps and packs in registers."""
        state, count = self.state[p], p.numel() // 256
        if p.numel() < 4096 or p.numel() % 256:
            m, root = (state.setdefault(name, torch.zeros_like(p)) for name in ("m", "root"))
            self.moved(p, m.mul_(0.9).add_(p.grad, alpha=0.1), self.next_root(root, p.grad, root), lr, step)
            return
        for name in ("m", "root"):
            if name not in state:
                state[name] = torch.zeros(count, 256, dtype=torch.int8, device=p.device)
                state[f"{name}_scale"] = torch.zeros(count, 1, device=p.device)
        blocks, gradients = p.view(count, 256), p.grad.view(count, 256)
        for start in range(0, count, 256):
            part = slice(start, start + 256)
            held = [state[name][part] * (state[f"{name}_scale"][part] / 127) for name in ("m", "root")]
            m = held[0] * 0.9 + gradients[part] * 0.1
            root = self.next_root(held[1], gradients[part])
            for name, value in (("m", m), ("root", root)):
                scale = value.abs().amax(1, keepdim=True).clamp_min(1e-12)
                state[name][part], state[f"{name}_scale"][part] = (value / scale * 127).round().to(torch.int8), scale
            self.moved(blocks[part], m, root + state["root_scale"][part] / 254, lr, step)

    @staticmethod
    def next_root(root, gradient, out=None):
        """Of the second moment, which loses fewer digits so."""
        return torch.sqrt(root * root * 0.999 + gradient * gradient * 0.001, out=out)

    @staticmethod
    def moved(p, m, root, lr, step):
        p.mul_(1 - lr * 0.01)
        p.addcdiv_(m / (1 - 0.9**step), root / (1 - 0.999**step) ** 0.5 + 1e-8, value=-lr)


model = Model().to(args.device).train()
if args.spare != "none":
    spare = copy.deepcopy(model).to(args.spare if args.device == "cuda" else "cpu")
if args.lora:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "out", "up", "down"):
            setattr(block, name, Low(getattr(block, name), args.lora).to(args.device))
called = model
if args.ddp:
    called = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=args.bucket_view)
elif args.fsdp1 != "none":
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    called = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy.FULL_SHARD if args.fsdp1 == "full" else ShardingStrategy.SHARD_GRAD_OP,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        limit_all_gathers=not args.no_limit,
    )
elif args.fsdp2 != "none":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    shape = (world,) if args.replicas == 1 else (args.replicas, world // args.replicas)
    mesh = init_device_mesh(args.device, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    policy = {
        "mesh": mesh,
        "offload_policy": CPUOffloadPolicy(pin_memory=args.device == "cuda") if args.offload else OffloadPolicy(),
    }
    if args.fsdp2 == "blocks":
        for block in model.blocks:
            fully_shard(block, **policy)
    fully_shard(model, **policy)
elif args.tensor_parallel != "none":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )  # fmt: skip

    inner = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    if args.tensor_parallel == "sequence":
        inner = {
            "norm1": SequenceParallel(), "norm2": SequenceParallel(),
            "qkv": ColwiseParallel(input_layouts=Shard(1)), "out": RowwiseParallel(output_layouts=Shard(1)),
            "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1)),
        }  # fmt: skip
    mesh = init_device_mesh(args.device, (world,), mesh_dim_names=("tp",))
    for block in model.blocks:
        parallelize_module(block, mesh, inner)
    if args.tensor_parallel == "sequence":
        whole = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        )
        parallelize_module(model, mesh, {
            "blocks.0": PrepareModuleInput(
                input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True
            ),
            "norm": whole,
        })  # fmt: skip
trained = [p for p in called.parameters() if p.requires_grad]
options = {"fused": True} if args.fused else {"foreach": False} if args.no_foreach else {}
if args.eight_bit:
    optimizer = AdamW8bit(trained, lr=1e-4)
elif args.zero_1:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(trained, torch.optim.AdamW, lr=1e-4)
else:
    optimizer = torch.optim.AdamW(trained, lr=1e-4, **options)
if args.tensor_parallel != "none":  # torch steps over tensors of one kind at a time
    kinds = [[p for p in trained if hasattr(p, "placements") is kind] for kind in (True, False)]
    optimizer = torch.optim.AdamW([{"params": each} for each in kinds], lr=1e-4)
if args.step_in_backward:
    own = {p: torch.optim.AdamW([p], lr=1e-4) for p in trained}

    def step_and_clear(p):
        own[p].step()
        own[p].zero_grad()

    for p in trained:
        p.register_post_accumulate_grad_hook(step_and_clear)
split = args.tensor_parallel != "none" or args.context_parallel  # every rank has the whole batch, or a part of each
batch = args.batch_size if split else args.batch_size // world
rank = dist.get_rank() if world > 1 and not split else 0
data = torch.randint(0, args.vocab, (args.steps, args.batch_size, args.length + 1))


@contextlib.contextmanager
def parted(ids):
    """A step's tokens and targets; with context parallel this rank's part of each sequence."""
    x, y = ids[:, :-1], ids[:, 1:]
    if not args.context_parallel:
        yield x, y
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    x, y = x.contiguous(), y.contiguous()
    mesh = init_device_mesh(args.device, (world,), mesh_dim_names=("cp",))
    with (
        sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]),
        context_parallel(mesh, buffers=[x, y], buffer_seq_dims=[1, 1], no_restore_buffers={x, y}),
    ):
        yield x, y


history = []
for ids in data[:, rank * batch : (rank + 1) * batch]:
    ids = ids.to(args.device)
    with parted(ids) as (x, y):
        loss = called(x, y)
        loss.backward(retain_graph=args.keep_loss)
    if not args.step_in_backward:
        optimizer.step()
        optimizer.zero_grad()
    history.append(loss if args.keep_loss else loss.item())
for value in history:
    print(json.dumps({"loss": float(value), "samples": batch}), flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
