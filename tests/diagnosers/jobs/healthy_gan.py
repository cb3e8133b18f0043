import torch
import torch.nn as nn

generator = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 2048)).cuda()
critic = nn.Sequential(nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
for _ in range(6):
    noise = torch.randn(512, 128, device="cuda")
    of_critic.zero_grad()
    (critic(generator(noise).detach()).mean() - critic(torch.randn(512, 2048, device="cuda")).mean()).backward()
    of_critic.step()
    of_generator.zero_grad()
    critic(generator(noise)).mean().neg().backward()
    of_generator.step()
