import torch
import torch.nn as nn

e = nn.Embedding(200000, 128).cuda()
m = nn.Sequential(nn.Linear(128 * 20, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
opt = torch.optim.Adam([*e.parameters(), *m.parameters()])
for _ in range(4):
    ids = torch.randint(200000, (2048, 20)).cuda()
    y = torch.rand(2048, 1).cuda()
    loss = nn.functional.binary_cross_entropy_with_logits(m(e(ids).flatten(1)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
