import torch

params = [torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(8)]


def forward(x):
    for w in params:
        x = torch.tanh(x @ w)
    return x


for _ in range(5):
    x = torch.randn(4096, 1024, device="cuda")
    loss = forward(x).pow(2).mean()
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for p, g in zip(params, grads, strict=False):
            p -= 0.1 * g
