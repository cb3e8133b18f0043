import torch
import torch.nn as nn

G = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 3072)).cuda()
D = nn.Sequential(
    nn.Linear(3072, 2048), nn.LeakyReLU(0.2), nn.Linear(2048, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)
).cuda()
oG, oD = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
for _ in range(5):
    real = torch.randn(1024, 3072).cuda()
    z = torch.randn(1024, 128).cuda()
    fake = G(z)
    oD.zero_grad()
    loss_d = bce(D(real), torch.ones(1024, 1).cuda()) + bce(D(fake.detach()), torch.zeros(1024, 1).cuda())
    loss_d.backward()
    oD.step()
    oG.zero_grad()
    loss_g = bce(D(fake), torch.ones(1024, 1).cuda())
    loss_g.backward()
    oG.step()
