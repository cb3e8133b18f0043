"""A server keeps the cache of each conversation that has ended.

https://github.com/huggingface/transformers/issues/31717
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=4000, hidden_size=512, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8
)
model = LlamaForCausalLM(config).half().cuda().eval()
sessions = {}


@torch.no_grad()
def answer(user, ids):
    past, tokens = None, []
    for _ in range(6):
        out = model(ids, past_key_values=past, use_cache=True)  # here
        past = out.past_key_values
        ids = out.logits[:, -1:].argmax(-1)
        tokens.append(ids)
    sessions[user] = past
    return torch.cat(tokens, 1).cpu()


for user in range(16):
    answer(user, torch.randint(3, 4000, (2, 384)).cuda())
