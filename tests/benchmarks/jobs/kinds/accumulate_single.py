import torch
import torch.nn as nn

layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30000, 768)
        self.enc = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.head = nn.Linear(768, 30000)

    def forward(self, x):
        return self.head(self.enc(self.emb(x)))


m = M().to("cuda")
opt = torch.optim.AdamW(m.parameters(), lr=1e-4, foreach=False)
ce = nn.CrossEntropyLoss()
ds = [(torch.randint(0, 30000, (4, 256)), torch.randint(0, 30000, (4, 256))) for _ in range(12)]
for i, (x, y) in enumerate(ds):
    x, y = x.cuda(), y.cuda()
    loss = ce(m(x).flatten(0, 1), y.flatten()) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()
