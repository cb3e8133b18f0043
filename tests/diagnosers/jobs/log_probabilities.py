"""Log-probabilities of every token of the vocabulary for one of each.

https://github.com/huggingface/trl/pull/2773
"""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

config = Qwen2Config(
    vocab_size=151_936,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
model = Qwen2ForCausalLM(config).bfloat16().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def per_token_logps(ids, keep):
    logits = model(ids, logits_to_keep=keep + 1).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, ids[:, -keep:].unsqueeze(-1)).squeeze(-1)  # here


for _ in range(3):
    ids = torch.randint(151_936, (8, 384)).cuda()
    loss = -per_token_logps(ids, 256).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
