import torch
import torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel


class Lora(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base = base
        i, o = base.weight.shape
        self.a = nn.Parameter(torch.randn(i, r) * 0.01)
        self.b = nn.Parameter(torch.zeros(r, o))

    def forward(self, x):
        return self.base(x) + x @ self.a @ self.b


m = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=16, n_head=16, use_cache=False)).requires_grad_(False)
for b in m.transformer.h:
    b.attn.c_attn = Lora(b.attn.c_attn)
    b.mlp.c_fc = Lora(b.mlp.c_fc)
m = m.to("cuda")
opt = torch.optim.AdamW((p for p in m.parameters() if p.requires_grad), 1e-4)
for _i in range(4):
    ids = torch.randint(0, 50257, (2, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = m(input_ids=ids, labels=ids).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
