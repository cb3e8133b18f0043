import torch
from transformers import LlamaConfig, LlamaForCausalLM

cfg = LlamaConfig(
    vocab_size=8000,
    hidden_size=512,
    intermediate_size=1408,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    use_cache=False,
)
model = LlamaForCausalLM(cfg).to(torch.bfloat16).cuda()
model.train()
model.gradient_checkpointing_enable()
opt = torch.optim.AdamW(model.parameters())
for _ in range(4):
    ids = torch.randint(8000, (8, 512)).cuda()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
