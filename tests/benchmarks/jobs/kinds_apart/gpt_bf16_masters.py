import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1 = nn.RMSNorm(d)
        self.q = nn.Linear(d, d, bias=False)
        self.k = nn.Linear(d, d // 2, bias=False)
        self.v = nn.Linear(d, d // 2, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.n2 = nn.RMSNorm(d)
        self.g = nn.Linear(d, 3 * d, bias=False)
        self.u = nn.Linear(d, 3 * d, bias=False)
        self.d = nn.Linear(3 * d, d, bias=False)
        self.h = h

    def forward(self, x):
        B, T, D = x.shape
        y = self.n1(x)
        q = self.q(y).view(B, T, self.h, -1).transpose(1, 2)
        k = self.k(y).view(B, T, self.h // 2, -1).transpose(1, 2)
        v = self.v(y).view(B, T, self.h // 2, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).reshape(B, T, D)
        x = x + self.o(y)
        y = self.n2(x)
        return x + self.d(F.silu(self.g(y)) * self.u(y))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(50304, 1024)
        self.b = nn.ModuleList(Block(1024, 16) for _ in range(10))
        self.n = nn.RMSNorm(1024)
        self.h = nn.Linear(1024, 50304, bias=False)

    def forward(self, x):
        x = self.e(x)
        for b in self.b:
            x = b(x)
        return self.h(self.n(x))


m = LM().cuda().bfloat16()
masters = [p.detach().float().clone() for p in m.parameters()]
opt = torch.optim.AdamW(masters, 3e-4)
for _it in range(4):
    x = torch.randint(0, 50304, (4, 513)).cuda()
    logits = m(x[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
    loss.backward()
    for p, q in zip(m.parameters(), masters, strict=False):
        q.grad = p.grad.float()
        p.grad = None
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for p, q in zip(m.parameters(), masters, strict=False):
            p.copy_(q)
