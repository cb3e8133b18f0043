"""A pipeline: each rank builds its own stages only, by one schedule after the other; parameters and moments counted."""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
WIDTH, WORDS = 256, 1000


class Stage(nn.Module):
    def __init__(self, index, count):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH) if index == 0 else None
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)])
        self.out = nn.Linear(WIDTH, WORDS, bias=False) if index == count - 1 else None

    def forward(self, x):
        x = self.layers(self.embed(x) if self.embed is not None else x)
        return self.out(x) if self.out is not None else x


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


for name in sys.argv[1:]:
    mine = 2 if name.startswith("Interleaved") else 1
    count = world * mine
    stages = [PipelineStage(Stage(i, count).to(device), i, count, device) for i in range(rank, count, world)]
    schedule = getattr(pipelining, f"Schedule{name}")(stages if mine > 1 else stages[0], n_microbatches=world * 2, loss_fn=loss)
    optimizer = torch.optim.AdamW([p for stage in stages for p in stage.submod.parameters()])
    tokens = torch.randint(0, WORDS, (world * 4, 32), device=device)
    for _ in range(2):
        losses = []
        arguments = (tokens,) if rank == 0 else ()
        schedule.step(*arguments, **({"target": tokens, "losses": losses} if rank == world - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    words = 4 * WORDS * WIDTH if rank in (0, world - 1) else 0
    expected = 3 * (words + mine * 2 * 4 * WIDTH * WIDTH)
    del schedule, stages, losses, tokens
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    held = torch.cuda.memory_allocated()
    assert expected <= held < expected + 2 * words + 2**16, (name, rank, held, expected)
    del optimizer
    gc.collect()
dist.destroy_process_group()
