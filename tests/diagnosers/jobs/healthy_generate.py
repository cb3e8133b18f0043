import torch
from transformers import LlamaConfig, LlamaForCausalLM

cfg = LlamaConfig(
    vocab_size=8000,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
)
model = LlamaForCausalLM(cfg).half().cuda().eval()
for _ in range(2):
    out = model.generate(
        torch.randint(8000, (32, 512), device="cuda"), max_new_tokens=12, do_sample=False, min_new_tokens=12
    )
