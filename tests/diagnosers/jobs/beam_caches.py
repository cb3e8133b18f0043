"""Decoding that keeps the key/value cache of every finished prompt."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=8000, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8)
model = LlamaForCausalLM(config).cuda().eval()
results = []
with torch.no_grad():
    for _ in range(12):
        ids = torch.randint(3, 8000, (16, 512)).cuda()
        out = model(input_ids=ids, use_cache=True)  # here
        results.append((out.logits[:, -1].argmax(-1).cpu(), out.past_key_values))
