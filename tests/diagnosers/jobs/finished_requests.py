"""A server keeps what `generate` returned for each finished request, with its cache.

https://github.com/huggingface/transformers/issues/31717
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=4000, hidden_size=512, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8
)
model = LlamaForCausalLM(config).half().cuda().eval()
history = []
for request in range(12):
    prompt = torch.randint(3, 4000, (4, 256)).cuda()
    out = model.generate(  # here
        prompt, max_new_tokens=4, do_sample=False, pad_token_id=0, return_dict_in_generate=True
    )
    history.append(out)
