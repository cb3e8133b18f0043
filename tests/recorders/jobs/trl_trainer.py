"""TRL trainers on a Llama from a config: sft, dpo or grpo (with generation and rewards)."""

import sys, tempfile, torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from tokenizers import Tokenizer, models, pre_tokenizers
tok = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "<eos>": 2, **{f"w{i}": i + 3 for i in range(100)}}, unk_token="<unk>"))
tok.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tok, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>")
config = LlamaConfig(hidden_size=128, intermediate_size=344, num_hidden_layers=2, num_attention_heads=4, vocab_size=128, max_position_embeddings=128)
model = LlamaForCausalLM(config)
text = " ".join(f"w{i}" for i in range(40))
common = dict(output_dir=tempfile.mkdtemp(), max_steps=2, per_device_train_batch_size=2, report_to=[], bf16=True, save_strategy="no", logging_steps=1)
kind = sys.argv[1]
if kind == "sft":
    from trl import SFTConfig, SFTTrainer
    trainer = SFTTrainer(model=model, args=SFTConfig(max_length=64, **common), train_dataset=Dataset.from_list([{"text": text}] * 8), processing_class=tokenizer)
elif kind == "dpo":
    from trl import DPOConfig, DPOTrainer
    rows = [{"prompt": "w1 w2", "chosen": "w3 w4 w5", "rejected": "w6 w7"}] * 8
    trainer = DPOTrainer(model=model, ref_model=LlamaForCausalLM(config), args=DPOConfig(**common), train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
else:
    from trl import GRPOConfig, GRPOTrainer
    def reward(completions, **kw): return [float(len(c)) for c in completions]
    trainer = GRPOTrainer(model=model, reward_funcs=reward, args=GRPOConfig(num_generations=2, max_completion_length=8, **common), train_dataset=Dataset.from_list([{"prompt": "w1 w2"}] * 8), processing_class=tokenizer)
trainer.train()
assert trainer.state.global_step == 2
assert len(trainer.optimizer.state) > 0
