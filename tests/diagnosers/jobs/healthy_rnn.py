import torch
import torch.nn as nn

embedding = nn.Embedding(5000, 256).cuda()
rnn = nn.LSTM(256, 512, 2, batch_first=True).cuda()
head = nn.Linear(512, 5000).cuda()
optimizer = torch.optim.Adam([*embedding.parameters(), *rnn.parameters(), *head.parameters()])
for _ in range(5):
    tokens = torch.randint(5000, (16, 65), device="cuda")
    out, _ = rnn(embedding(tokens[:, :-1]))
    loss = nn.functional.cross_entropy(head(out).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(rnn.parameters(), 1.0)
    optimizer.step()
