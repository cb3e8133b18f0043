"""Checkpointing is off in eval mode.

https://github.com/victorchall/EveryDream2trainer/pull/246
"""

import torch
from transformers import BertConfig, BertForMaskedLM

model = BertForMaskedLM(
    BertConfig(vocab_size=2000, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048)
).cuda()
model.gradient_checkpointing_enable()
model.eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    ids = torch.randint(2000, (16, 512)).cuda()
    loss = model(ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
