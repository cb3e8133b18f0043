import torch
import torch.nn as nn
import torch.nn.functional as F


class Attn(nn.Module):
    def __init__(self, d, h, B, T):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.register_buffer("k_cache", torch.zeros(B, h, T, d // h), persistent=False)
        self.register_buffer("v_cache", torch.zeros(B, h, T, d // h), persistent=False)

    def forward(self, x, p):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        self.k_cache[:, :, p : p + T] = k
        self.v_cache[:, :, p : p + T] = v
        return self.o(
            F.scaled_dot_product_attention(q, self.k_cache[:, :, : p + T], self.v_cache[:, :, : p + T], is_causal=T > 1)
            .transpose(1, 2)
            .reshape(B, T, C)
        )


class Blk(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.RMSNorm(1024)
        self.a = Attn(1024, 16, 8, 1024)
        self.m = nn.RMSNorm(1024)
        self.f = nn.Sequential(nn.Linear(1024, 4096), nn.SiLU(), nn.Linear(4096, 1024))

    def forward(self, x, p):
        x = x + self.a(self.n(x), p)
        return x + self.f(self.m(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(32000, 1024)
        self.b = nn.ModuleList(Blk() for _ in range(12))
        self.h = nn.Linear(1024, 32000, bias=False)

    def forward(self, x, p):
        x = self.e(x)
        for b in self.b:
            x = b(x, p)
        return self.h(x[:, -1:])


m = LM().half().cuda().eval()


@torch.no_grad()
def generate(prompt, n):
    x, p = prompt, 0
    out = []
    for _ in range(n):
        lg = m(x, p)
        p += x.shape[1]
        x = lg.argmax(-1)
        out.append(x)
    return torch.cat(out, 1)


generate(torch.randint(0, 32000, (8, 512), device="cuda"), 6)
generate(torch.randint(0, 32000, (8, 512), device="cuda"), 6)
