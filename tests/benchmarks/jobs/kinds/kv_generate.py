import torch
from transformers import LlamaConfig, LlamaForCausalLM

cfg = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=16,
)
model = LlamaForCausalLM(cfg).to(torch.bfloat16).cuda().eval()
for _p in range(2):
    ids = torch.randint(3, 32000, (16, 512)).cuda()
    out = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
