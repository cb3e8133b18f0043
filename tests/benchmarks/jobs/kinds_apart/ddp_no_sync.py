import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
torch.cuda.set_device(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(16))
        self.o = nn.Linear(2048, 1000)

    def forward(self, x):
        for l in self.l:
            x = torch.relu(l(x)) + x
        return self.o(x)


m = DDP(Net().cuda(), device_ids=[0])
opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
for i in range(9):
    x = torch.randn(4096, 2048, device="cuda")
    with m.no_sync() if (i + 1) % 3 else contextlib.nullcontext():
        m(x).logsumexp(1).mean().backward()
    if (i + 1) % 3 == 0:
        opt.step()
        opt.zero_grad()
