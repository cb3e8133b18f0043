"""A plain loop: model and batches moved in each of the usual ways, an optimizer made before the model moves."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
print("training on", torch.cuda.get_device_name(0), device)

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model = model.to(device)
criterion = nn.CrossEntropyLoss().cuda()
data = TensorDataset(torch.randn(256, 256), torch.randint(0, 10, (256,)))
loader = DataLoader(data, batch_size=64, shuffle=True, num_workers=2, pin_memory=True, drop_last=True)

parameters = 4 * (256 * 1024 + 1024) + 40960 + 512  # the last layer: 10 x 1024 floats, and 10 rounded to 512 bytes
assert torch.cuda.memory_allocated() == parameters, torch.cuda.memory_allocated()

best = float("inf")
correct = 0
for epoch in range(2):
    for inputs, targets in loader:
        inputs, targets = inputs.to(device, non_blocking=True), targets.cuda(non_blocking=True)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        correct += (outputs.argmax(1) == targets).sum().item()
        if loss.item() < best:
            best = loss.item()
    print(f"epoch {epoch}: loss {loss.item():.4f}, best {best:.3f}, accuracy {correct / len(data):.2%}")

del inputs, targets, outputs, loss
optimizer.zero_grad(set_to_none=True)
torch._C._cuda_clearCublasWorkspaces()
assert torch.cuda.memory_allocated() == 3 * parameters, torch.cuda.memory_allocated()
print("memory", torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
