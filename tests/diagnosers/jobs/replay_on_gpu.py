"""A replay buffer whose transitions were moved to the GPU when they were cached.

https://github.com/pytorch/tutorials/issues/1620
"""

import random
from collections import deque

import torch
import torch.nn as nn


class Agent:
    def __init__(self):
        self.net = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 20 * 20, 2)).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2.5e-4)
        self.memory = deque(maxlen=100_000)

    def act(self, state):
        with torch.no_grad():
            return self.net(state.cuda().unsqueeze(0)).argmax(1)

    def cache(self, state, next_state):
        state, next_state = state.cuda(), next_state.cuda()  # here
        self.memory.append((state, next_state))

    def learn(self):
        if len(self.memory) < 32:
            return
        batch = random.sample(self.memory, 32)
        state, next_state = map(torch.stack, zip(*batch))
        with torch.no_grad():
            target = self.net(next_state).max(1).values
        loss = nn.functional.smooth_l1_loss(self.net(state)[:, 0], target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


agent = Agent()
for step in range(400):
    state, next_state = torch.rand(4, 84, 84), torch.rand(4, 84, 84)
    agent.act(state)
    agent.cache(state, next_state)
    agent.learn()
