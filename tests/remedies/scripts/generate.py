# ruff: noqa: T201 - a script as users write them
"""A language model that answers long prompts. Knows nothing of oomdoc."""

import argparse

import torch
import transformers as hf

parser = argparse.ArgumentParser()
parser.add_argument("--cache", default=None, help="transformers' cache_implementation")
parser.add_argument("--prompt", type=int, default=4096)
parser.add_argument("--new", type=int, default=4)
args = parser.parse_args()
config = hf.LlamaConfig(
    vocab_size=8000, hidden_size=512, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=8,
    intermediate_size=1024, max_position_embeddings=args.prompt + args.new,
)  # fmt: skip
torch.set_default_dtype(torch.bfloat16)
model = hf.LlamaForCausalLM(config).to("cuda").eval()
prompt = torch.randint(0, 8000, (4, args.prompt), device="cuda")
options = {"cache_implementation": args.cache} if args.cache else {}
with torch.no_grad():
    answer = model.generate(
        prompt, max_new_tokens=args.new, do_sample=False, eos_token_id=None, pad_token_id=0, **options
    )
print(answer.shape)
