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
model = LlamaForCausalLM(cfg).cuda()
opt = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(4):
    ids = torch.randint(8000, (4, 512)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    opt.step()
    opt.zero_grad()
