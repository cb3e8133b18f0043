import torch
import torch.nn as nn

G = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 3072)).cuda()
D = nn.Sequential(nn.Linear(3072, 2048), nn.LeakyReLU(0.2), nn.Linear(2048, 1)).cuda()
oG, oD = torch.optim.RMSprop(G.parameters()), torch.optim.RMSprop(D.parameters())
for _ in range(3):
    for _ in range(5):
        real = torch.randn(512, 3072, device="cuda")
        oD.zero_grad()
        (D(G(torch.randn(512, 128, device="cuda")).detach()).mean() - D(real).mean()).backward()
        oD.step()
    oG.zero_grad()
    D(G(torch.randn(512, 128, device="cuda"))).mean().neg().backward()
    oG.step()
