import torch
import torch.nn as nn

m = nn.Sequential(
    nn.Embedding(5000, 512),
    nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4),
    nn.Linear(512, 5000),
).cuda()
opt = torch.optim.AdamW(m.parameters())
for _ in range(2):
    m.train()
    for _ in range(3):
        x = torch.randint(5000, (4, 128)).cuda()
        loss = nn.functional.cross_entropy(m(x).flatten(0, 1), x.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    m.eval()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randint(5000, (8, 128)).cuda()
            acc = (m(x).argmax(-1) == x).float().mean().item()
