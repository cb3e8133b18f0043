import torch
import torch.nn.functional as F

torch.manual_seed(0)
W = [(torch.randn(4096, 4096, device="cuda") / 64).requires_grad_() for _ in range(6)]
b = [torch.zeros(4096, device="cuda", requires_grad=True) for _ in range(6)]
for _it in range(5):
    x = torch.randn(2048, 4096, device="cuda")
    h = x
    for w, c in zip(W, b, strict=False):
        h = F.relu(h @ w + c)
    loss = h.pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for p in W + b:
            p -= 0.1 * p.grad
            p.grad = None
