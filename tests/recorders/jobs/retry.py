"""Out of memory, caught, the batch halved until it fits."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 8192)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch, failed = 1 << 20, []
try:
    torch.empty(1 << 42, device="cuda")
except RuntimeError as error:
    assert "out of memory" in str(error)
torch.cuda.reset_accumulated_memory_stats()
while True:
    try:
        model(torch.randn(batch, 8192, device="cuda")).sum().backward()
        optimizer.step()
        break
    except torch.OutOfMemoryError as error:
        assert isinstance(error, RuntimeError) and "CUDA out of memory. Tried to allocate" in str(error)
        failed.append(batch)
        batch //= 2
    model.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
print("fits with", batch, "after", failed)
assert failed and batch >= 1 << 16
assert torch.cuda.memory_stats()["num_ooms"] == len(failed)
