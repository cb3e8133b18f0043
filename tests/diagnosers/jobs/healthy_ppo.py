import copy

import torch
import torch.nn as nn


def net(o):
    return nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, o))


actor, critic = net(16).cuda(), net(1).cuda()
ref = copy.deepcopy(actor)
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-4)
for _ in range(3):
    obs = torch.randn(8192, 512, device="cuda")
    with torch.no_grad():
        lp0 = actor(obs).log_softmax(-1)
        v0 = critic(obs)
        r = ref(obs).log_softmax(-1)
    for _ in range(4):
        lp = actor(obs).log_softmax(-1)
        v = critic(obs)
        loss = -(lp * (lp0.exp())).sum(-1).mean() + (v - v0).pow(2).mean() + (lp - r).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
