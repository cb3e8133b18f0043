"""GAN: the generator's graph is kept through the discriminator's step, because fake is not detached."""

import torch
import torch.nn as nn

G = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), *[nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(6)]).cuda()
D = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.LeakyReLU(0.2)) for _ in range(6)], nn.Linear(2048, 1)).cuda()
opt_g, opt_d = torch.optim.Adam(G.parameters(), foreach=False), torch.optim.Adam(D.parameters(), foreach=False)
bce = nn.BCEWithLogitsLoss()
g_losses, d_losses = [], []
for i in range(20):
    real = torch.randn(4096, 2048).cuda()
    ones, zeros = torch.ones(4096, 1).cuda(), torch.zeros(4096, 1).cuda()
    fake = G(torch.randn(4096, 128).cuda())
    d_loss = bce(D(real), ones) + bce(D(fake), zeros)  # here
    opt_d.zero_grad()
    d_loss.backward(retain_graph=True)
    opt_d.step()
    g_loss = bce(D(fake), ones)
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    g_losses.append(g_loss)
    d_losses.append(d_loss)
