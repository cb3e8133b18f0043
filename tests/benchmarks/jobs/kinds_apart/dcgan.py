import torch
import torch.nn as nn

G = nn.Sequential(
    nn.ConvTranspose2d(128, 1024, 4, 1, 0),
    nn.BatchNorm2d(1024),
    nn.ReLU(True),
    nn.ConvTranspose2d(1024, 512, 4, 2, 1),
    nn.BatchNorm2d(512),
    nn.ReLU(True),
    nn.ConvTranspose2d(512, 256, 4, 2, 1),
    nn.BatchNorm2d(256),
    nn.ReLU(True),
    nn.ConvTranspose2d(256, 128, 4, 2, 1),
    nn.BatchNorm2d(128),
    nn.ReLU(True),
    nn.ConvTranspose2d(128, 3, 4, 2, 1),
    nn.Tanh(),
).cuda()
D = nn.Sequential(
    nn.Conv2d(3, 128, 4, 2, 1),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(128, 256, 4, 2, 1),
    nn.BatchNorm2d(256),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(256, 512, 4, 2, 1),
    nn.BatchNorm2d(512),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(512, 1, 8),
).cuda()
og = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
od = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
for _i in range(5):
    real = torch.randn(128, 3, 64, 64).cuda()
    one = torch.ones(128, device="cuda")
    z = torch.randn(128, 128, 1, 1, device="cuda")
    D.zero_grad()
    er = bce(D(real).view(-1), one)
    er.backward()
    fake = G(z)
    ef = bce(D(fake.detach()).view(-1), one * 0)
    ef.backward()
    od.step()
    G.zero_grad()
    eg = bce(D(fake).view(-1), one)
    eg.backward()
    og.step()
