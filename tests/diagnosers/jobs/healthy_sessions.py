"""Sessions that take turns: every cache is read again."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=4000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
)
model = LlamaForCausalLM(config).half().cuda().eval()
sessions = {}
with torch.inference_mode():
    for turn in range(3):
        for user in range(5):
            out = model(torch.randint(3, 4000, (2, 128)).cuda(), past_key_values=sessions.get(user), use_cache=True)
            sessions[user] = out.past_key_values
