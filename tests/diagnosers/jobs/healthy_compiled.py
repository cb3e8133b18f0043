import torch
import torch.nn as nn

m = nn.Sequential(
    nn.Embedding(5000, 512),
    nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4),
    nn.Linear(512, 5000),
).cuda()
c = torch.compile(m)
opt = torch.optim.AdamW(m.parameters())
for _ in range(4):
    x = torch.randint(5000, (8, 128)).cuda()
    loss = nn.functional.cross_entropy(c(x).flatten(0, 1), x.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
