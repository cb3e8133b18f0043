"""Custom functions, hooks, torch.func, double backward, anomaly mode, channels_last, EMA."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.is_cuda
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        assert grad.is_cuda and x.device == grad.device
        return 2 * x * grad


x = torch.randn(128, 128, device="cuda", requires_grad=True)
Square.apply(x).sum().backward()
assert x.grad.is_cuda
(grad,) = torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
grad.pow(2).sum().backward()

model = nn.Linear(64, 64).cuda()
params = dict(model.named_parameters())
gradients = torch.func.grad(lambda p, v: torch.func.functional_call(model, p, (v,)).sum())(params, torch.ones(2, 64, device="cuda"))
assert gradients["weight"].is_cuda and gradients["weight"].shape == (64, 64)
batched = torch.func.vmap(lambda v: model(v).sum())(torch.ones(8, 64, device="cuda"))
assert batched.shape == (8,) and batched.is_cuda
jacobian = torch.func.jacrev(lambda v: model(v))(torch.ones(64, device="cuda"))
assert jacobian.shape == (64, 64)

ema = copy.deepcopy(model)
ema.requires_grad_(False)
for mine, theirs in zip(ema.parameters(), model.parameters()):
    mine.mul_(0.99).add_(theirs, alpha=0.01)
averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
averaged.update_parameters(model)
averaged.update_parameters(model)
assert averaged.module.weight.is_cuda

convolution = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
convolution = convolution.cuda().to(memory_format=torch.channels_last)
images = torch.randn(4, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
assert convolution(images).shape == (4, 16)
convolution(images).sum().backward()

recurrent = nn.LSTM(32, 64, num_layers=2, batch_first=True, dropout=0.1).cuda()
output, (hidden, cell) = recurrent(torch.randn(4, 16, 32, device="cuda"))
assert output.shape == (4, 16, 64) and hidden.is_cuda
output.sum().backward()
layer = nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda()
layer(torch.randn(2, 16, 64, device="cuda")).sum().backward()
attention = nn.MultiheadAttention(64, 4, batch_first=True).cuda()
q = torch.randn(2, 16, 64, device="cuda")
attention(q, q, q)[0].sum().backward()

logits = torch.randn(32, 100, device="cuda", requires_grad=True)
labels = torch.randint(0, 100, (32,), device="cuda")
loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
loss.backward()
mask = labels > 50
print("chosen", logits[mask].shape, mask.sum().item(), labels.unique().numel())
if torch.isnan(loss):
    raise SystemExit("loss is not a number")
with torch.autograd.detect_anomaly():
    F.mse_loss(model(torch.ones(2, 64, device="cuda")), torch.zeros(2, 64, device="cuda")).backward()
print(loss, f"{loss:.3f}", float(loss), loss.tolist(), loss.detach().cpu().numpy())
torch.cuda.synchronize()
