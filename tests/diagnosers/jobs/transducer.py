"""A transducer's joint network over frames x labels x vocabulary.

https://github.com/espnet/espnet/issues/2921
"""

import torch
import torch.nn as nn


class Transducer(nn.Module):
    def __init__(self, vocabulary=4233):
        super().__init__()
        self.encoder = nn.LSTM(83, 512, 2, batch_first=True)
        self.embed, self.decoder = nn.Embedding(vocabulary, 512), nn.LSTM(512, 512, batch_first=True)
        self.joint = nn.Linear(512, vocabulary)

    def forward(self, frames, labels):
        h = self.encoder(frames)[0].unsqueeze(2)
        g = self.decoder(self.embed(labels))[0].unsqueeze(1)
        return self.joint(torch.tanh(h + g)).log_softmax(-1)  # here


model = Transducer().cuda()
optimizer = torch.optim.Adadelta(model.parameters())
for frames, labels in ((60, 8), (80, 10), (120, 20)):
    out = model(torch.randn(16, frames, 83).cuda(), torch.randint(4233, (16, labels)).cuda())
    loss = -out[..., 0].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
