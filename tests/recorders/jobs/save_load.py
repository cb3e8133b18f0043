"""Checkpoints written and read back, on each device, by torch.save and safetensors."""

import os
import tempfile

import torch
from torch import nn

folder = tempfile.mkdtemp()
path = os.path.join(folder, "checkpoint.pt")
model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(4, 1024, device="cuda")).sum().backward()
optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)

model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 10))
checkpoint = torch.load(path, map_location="cpu")
assert checkpoint["epoch"] == 3
assert checkpoint["model"]["0.weight"].device.type == "cpu"
model.load_state_dict(checkpoint["model"])
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(checkpoint["optimizer"])
assert all(s["exp_avg"].is_cuda for s in optimizer.state.values())
model(torch.randn(4, 1024, device="cuda")).sum().backward()
optimizer.step()
assert torch.load(path, weights_only=True)["model"]["0.weight"].is_cuda
assert torch.load(path, map_location=lambda storage, location: storage.cuda(0))["model"]["0.weight"].is_cuda
assert torch.load(path, map_location={"cuda:0": "cpu"})["model"]["0.weight"].device.type == "cpu"

from safetensors.torch import load_file, save_file

file = os.path.join(folder, "model.safetensors")
save_file(model.state_dict(), file, metadata={"format": "pt"})
assert load_file(file)["0.weight"].shape == (1024, 1024)
assert load_file(file, device="cuda")["0.weight"].is_cuda
cpu_only = os.path.join(folder, "host.pt")
torch.save({"x": torch.arange(5)}, cpu_only)
assert torch.load(cpu_only)["x"].tolist() == [0, 1, 2, 3, 4]
assert torch.load(cpu_only, map_location="cuda")["x"].is_cuda
print(os.path.getsize(path))
