"""Tensor and sequence parallel with a sharded loss, context parallel attention, experts behind an all-to-all."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
WIDTH, HEADS, WORDS = 256, 8, 1024


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (each(x).view(b, t, -1, WIDTH // HEADS).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attention = nn.RMSNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.down(F.silu(self.up(self.n2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block = nn.Embedding(WORDS, WIDTH), Block()
        self.norm, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.out(self.norm(self.block(self.embed(tokens))))


model = Model().cuda()
parallelize_module(model, mesh, {
    "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
})
parallelize_module(model.block, mesh, {
    "n1": SequenceParallel(),
    "n2": SequenceParallel(),
    "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
    "attention.o": RowwiseParallel(output_layouts=Shard(1)),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
})
split = 4 * (2 * WORDS * WIDTH + 12 * WIDTH * WIDTH) // world
norms = 4 * 4 * WIDTH  # three weights and a bias, on every rank
assert torch.cuda.memory_allocated() == split + norms, (torch.cuda.memory_allocated(), split + norms)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(2):
    tokens = torch.randint(0, WORDS, (2, 64), device="cuda")
    with loss_parallel():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
del loss, tokens
torch._C._cuda_clearCublasWorkspaces()
counters = 512 * len(list(model.parameters()))
assert torch.cuda.memory_allocated() == 3 * (split + norms) + counters

# ---- context parallel: each rank holds its part of the sequence
q, k, v = (torch.randn(1, HEADS, 1024, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
    with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2], no_restore_buffers={q, k, v}):
        for each in (q, k, v):
            each.requires_grad_()
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert out.shape == q.shape == (1, HEADS, 1024 // world, 64)
        out.sum().backward()

# ---- experts: two on each rank, two for each token
EXPERTS, TOKENS, CHOICES = world * 2, 512, 2


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(2)
        )

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(CHOICES, -1)
        counts = F.one_hot(chosen.flatten(), EXPERTS).sum(0)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, received = (each.view(world, -1).sum(1).tolist() for each in (counts, theirs))
        order = chosen.flatten().argsort()
        arrived = all_to_all_single_autograd(x[order // CHOICES], received, sent, dist.group.WORLD)
        per_expert = theirs.view(world, -1).sum(0).tolist()
        assert per_expert == [TOKENS * CHOICES // 2] * 2  # every rank sends an even share
        done = torch.cat([mlp(part) for mlp, part in zip(self.mlps, arrived.split(per_expert))])
        back = all_to_all_single_autograd(done, sent, received, dist.group.WORLD)
        return torch.zeros_like(x).index_add(0, order // CHOICES, back * weights.flatten()[order][:, None])


experts = Experts().cuda()
experts(torch.randn(TOKENS, WIDTH, device="cuda", requires_grad=True)).sum().backward()
assert all(p.grad is not None for p in experts.parameters())
dist.destroy_process_group()
