"""LoRA by PEFT on a bfloat16 Llama: frozen base, adapters trained with checkpointing, saved, loaded, merged."""

import tempfile, torch
from peft import LoraConfig, get_peft_model, PeftModel
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000, max_position_embeddings=128)
base = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
held = torch.cuda.memory_allocated()
model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, task_type="CAUSAL_LM"))
adapters = [p for p in model.parameters() if p.requires_grad]
padded = lambda t: (t.numel() * t.element_size() + 511) // 512 * 512
assert torch.cuda.memory_allocated() - held == sum(map(padded, adapters))
model.gradient_checkpointing_enable(); model.enable_input_require_grads()
opt = torch.optim.AdamW(adapters, lr=1e-4)
for _ in range(3):
    ids = torch.randint(0, 1000, (2, 64), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    opt.step(); opt.zero_grad()
assert len(opt.state) == len(adapters)
assert all(p.grad is None for p in base.parameters() if not p.requires_grad)
folder = tempfile.mkdtemp()
model.save_pretrained(folder)
again = PeftModel.from_pretrained(LlamaForCausalLM(config).cuda(), folder)
merged = again.merge_and_unload()
out = merged.generate(torch.ones(2, 4, dtype=torch.long, device="cuda"), max_new_tokens=4)
assert out.shape == (2, 8)
