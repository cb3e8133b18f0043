"""A checkpoint larger than this machine's memory, from a local folder: its shapes, not its data; then a step."""

import json
import resource
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=8, num_attention_heads=64, num_key_value_heads=8,
    vocab_size=128256, tie_word_embeddings=False,
)
folder = Path(tempfile.mkdtemp())
config.save_pretrained(folder)
with torch.device("meta"):
    skeleton = LlamaForCausalLM(config)
header, end = {"__metadata__": {"format": "pt"}}, 0
for name, parameter in skeleton.state_dict().items():
    begin, end = end, end + 4 * parameter.numel()
    header[name] = {"dtype": "F32", "shape": list(parameter.shape), "data_offsets": [begin, end]}
text = json.dumps(header).encode()
with open(folder / "model.safetensors", "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    file.truncate(8 + len(text) + end)  # a hole: it takes no room on the disk
parameters = sum(p.numel() for p in skeleton.parameters())
assert end > 32 * 2**30, end

options = {"device_map": "cuda"} if "mapped" in sys.argv else {}
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options).cuda()
assert next(model.parameters()).dtype is torch.bfloat16 and next(model.parameters()).is_cuda
held = torch.cuda.memory_allocated()
assert 2 * parameters <= held <= 2 * parameters + 2**20, (held, parameters)
tokens = torch.randint(0, config.vocab_size, (1, 128), device="cuda")
with torch.no_grad():
    model(input_ids=tokens)
resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
assert resident < 4 * 2**30, resident
