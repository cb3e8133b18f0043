import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

cfg = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=16,
    use_cache=False,
)
m = LlamaForCausalLM(cfg).to(torch.bfloat16).cuda()
m.gradient_checkpointing_enable()
m.enable_input_require_grads()
m = get_peft_model(m, LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]))
opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 1e-4)
for _i in range(4):
    ids = torch.randint(0, 32000, (4, 1024)).cuda()
    m(input_ids=ids, labels=ids).loss.backward()
    opt.step()
    opt.zero_grad()
