"""A Llama as torchtitan and torchtune write it, with the switches that published memory figures turn.

oomdoc run --gpu h100-80gb --nproc-per-node 8 llama.py --size 8b --fsdp --length 8192 --batch 2 --recompute ops
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as wrapped
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

SIZES = {  # width, layers, heads, key-value heads, hidden, vocabulary, whether head and embedding are one
    "1b": (2048, 16, 32, 8, 8192, 128_256, True),
    "3b": (3072, 28, 24, 8, 8192, 128_256, True),
    "8b": (4096, 32, 32, 8, 14_336, 128_256, False),
}
aten = torch.ops.aten


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bf16", action="store_true", help="weights, gradients and states in bfloat16")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--recompute", choices=["none", "full", "second", "ops"], default="none")
    parser.add_argument("--compile", action="store_true", help="each block, and with chunks the loss")
    parser.add_argument("--compile-loss", action="store_true", help="as torchtitan does since 2025")
    parser.add_argument("--loss-chunks", type=int, default=0, help="torchtune's chunked loss")
    parser.add_argument("--in-backward", action="store_true", help="the optimizer steps as each gradient comes")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters on every linear layer")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--float8", choices=["local", "gathered"], help="torchao's, by tensor; gathered: in float8")
    return parser.parse_args()


class Lora(nn.Module):
    """torchtune's: the base layer frozen, two small ones beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(base.weight.detach(), requires_grad=False)
        kwargs = {"bias": False, "dtype": base.weight.dtype, "device": base.weight.device}
        self.a = nn.Linear(base.in_features, rank, **kwargs)
        self.b = nn.Linear(rank, base.out_features, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight)
        return out + 2.0 * self.b(self.a(x))


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of channels as complex numbers."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[:, None]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        q, k, v = (w(x).view(*x.shape[:2], -1, self.size) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, angles), rotate(k, angles)
        k, v = (self.repeated(t) for t in (k, v))
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(x.shape))

    def repeated(self, x: Tensor) -> Tensor:
        times = self.heads // self.kv_heads
        return x[:, :, :, None].expand(-1, -1, -1, times, -1).reshape(*x.shape[:2], self.heads, self.size)


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(width, heads, kv_heads), FeedForward(width, hidden)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, size: str, length: int) -> None:
        super().__init__()
        width, layers, heads, kv_heads, hidden, vocabulary, tied = SIZES[size]
        self.embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.tied = tied
        turns = 1.0 / 500_000 ** (torch.arange(0, width // heads, 2).float() / (width // heads))
        angles = torch.outer(torch.arange(length).float(), turns)
        self.register_buffer("angles", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens: Tensor, chunks: int = 0) -> Tensor | list[Tensor]:
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.angles)
        x = self.norm(x)
        return [self.output(part) for part in x.chunk(chunks, dim=1)] if chunks else self.output(x)


def matmuls_every_second() -> object:
    """torchtitan's selective recomputation: attention and every second product are kept."""
    kept = {
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }
    products = {True: 0, False: 0}

    def policy(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        if op is aten.mm.default:
            products[context.is_recompute] += 1
        keep = op in kept or (op is aten.mm.default and products[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recompute(model: Llama, how: str) -> None:
    for number, layer in enumerate(model.layers):
        if how == "ops":
            model.layers[number] = wrapped(layer, context_fn=matmuls_every_second, preserve_rng_state=False)
        elif how == "full" or (how == "second" and number % 2 == 1):
            model.layers[number] = wrapped(layer, preserve_rng_state=False)


def shard(model: Llama) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for number, layer in enumerate(model.layers):
        fully_shard(layer, mp_policy=precision, reshard_after_forward=number < len(model.layers) - 1)
    fully_shard(model, mp_policy=precision, reshard_after_forward=True)


def adapt(model: Llama, rank: int) -> None:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child is not model.output:
                setattr(module, name, Lora(child, rank))


def to_float8(model: Llama, how: str) -> None:
    """torchtitan's: every linear layer but the last, dynamic scales of whole tensors."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(enable_fsdp_float8_all_gather=how == "gathered")
    convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name != "output")


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def chunk_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")


def loss_of(model: Llama, tokens: Tensor, labels: Tensor, args: argparse.Namespace) -> Tensor:
    if not args.loss_chunks:
        whole = torch.compile(mean_loss) if args.compile_loss else mean_loss
        return whole(model(tokens), labels)
    each = torch.compile(chunk_loss) if args.compile else chunk_loss
    parts = zip(model(tokens, args.loss_chunks), labels.chunk(args.loss_chunks, dim=1), strict=True)
    return sum(each(part, label) for part, label in parts) / labels.numel()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def main() -> None:
    args = options()
    if args.fsdp:
        torch.distributed.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with default_dtype(torch.bfloat16) if args.bf16 else nullcontext(), torch.device("meta"):
        model = Llama(args.size, args.length)
    if args.float8:
        to_float8(model, args.float8)
    recompute(model, args.recompute)
    if args.compile:
        for layer in model.layers:
            layer.compile()
    if args.lora:
        adapt(model, args.lora)
    if args.fsdp:
        shard(model)
    if model.tied:
        model.output.register_parameter("weight", None)
    model.to_empty(device="cuda")
    if model.tied:
        model.output.weight = model.embeddings.weight
    parameters = [p for p in model.parameters() if p.requires_grad]
    adamw = partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.1, fused=args.fused)
    if args.in_backward:
        own = {p: adamw([p]) for p in parameters}

        def step(p: Tensor) -> None:
            own[p].step()
            own[p].zero_grad()

        for p in parameters:
            p.register_post_accumulate_grad_hook(step)
    else:
        optimizer = adamw(parameters)
    print(f"after init: {torch.cuda.memory_allocated() / 2**30:.2f} GiB")  # noqa: T201  (a job)
    for _ in range(args.steps):
        tokens = torch.zeros(args.batch, args.length, dtype=torch.int64).cuda()
        labels = torch.zeros(args.batch, args.length, dtype=torch.int64).cuda()
        loss_of(model, tokens, labels, args).backward()
        if not args.in_backward:
            if args.fsdp:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
        if args.float8 == "gathered":
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            precompute_float8_dynamic_scale_for_fsdp(model)
    active = torch.cuda.memory_stats()["active_bytes.all.peak"]
    for name, value in (
        ("allocated", torch.cuda.max_memory_allocated()),
        ("active", active),
        ("reserved", torch.cuda.max_memory_reserved()),
    ):
        print(f"{name}: {value} bytes, {value / 2**30:.2f} GiB")  # noqa: T201  (a job)


main()
