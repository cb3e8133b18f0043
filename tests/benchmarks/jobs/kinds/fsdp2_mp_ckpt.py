import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

dist.init_process_group("nccl")
torch.cuda.set_device(0)
cfg = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=4,
    use_cache=False,
)
m = LlamaForCausalLM(cfg).cuda()
apply_activation_checkpointing(m, check_fn=lambda x: isinstance(x, LlamaDecoderLayer))
mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for l in m.model.layers:
    fully_shard(l, mp_policy=mp)
fully_shard(m, mp_policy=mp)
opt = torch.optim.AdamW(m.parameters(), 1e-4)
for _i in range(3):
    ids = torch.randint(0, 32000, (4, 1024), device="cuda")
    m(input_ids=ids, labels=ids).loss.backward()
    opt.step()
    opt.zero_grad()
