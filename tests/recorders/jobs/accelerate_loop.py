"""A loop under Accelerate: mixed precision, accumulation, clipping, state saved and loaded."""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
assert accelerator.device.type == "cuda"
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
loader = DataLoader(TensorDataset(torch.randn(64, 256), torch.randint(0, 10, (64,))), batch_size=16, num_workers=1)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(2):
    for x, y in loader:
        assert x.is_cuda
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    accelerator.print("epoch", epoch, accelerator.gather(loss).mean().item())
folder = tempfile.mkdtemp()
accelerator.save_state(folder)
accelerator.load_state(folder)
parameters = sum((4 * p.numel() + 511) // 512 * 512 for p in model.parameters())
del x, y, loss
torch._C._cuda_clearCublasWorkspaces()
held = torch.cuda.memory_allocated()
assert 3 * parameters <= held <= 4 * parameters, (held, parameters)
accelerator.end_training()
