"""torchtune's single-device recipes: its own models, adapters, losses and memory switches, on packed batches.

pip install --no-deps torchtune==0.4.0 torchao==0.15.0 (of the published figures' time, and with the parts it imports)

oomdoc run --gpu a100-80gb torchtune_recipe.py --model qlora_llama3_2_3b --rank 64 --batch 2 --length 4096 --compile
"""

import argparse
import importlib

import timm_anyway  # before torchtune
import torch
from torchtune import modules, training
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.peft import get_adapter_params, set_trainable_params

parser = argparse.ArgumentParser()
parser.add_argument("--family", default="llama3_2")
parser.add_argument("--model", default="llama3_2_3b", help="a builder of torchtune.models.FAMILY")
parser.add_argument("--rank", type=int, default=8, help="of adapters, for a lora_ or qlora_ model")
parser.add_argument("--on", default="q_proj,v_proj,output_proj")
parser.add_argument("--no-mlp", action="store_true", help="no adapters there")
parser.add_argument("--length", type=int, default=2048)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--optimizer", choices=["adamw", "bnb-8bit", "bnb-paged-8bit", "ao-8bit"], default="adamw")
parser.add_argument("--in-backward", action="store_true")
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--offload", action="store_true", help="saved activations to the host")
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()


def adamw():
    if args.optimizer == "ao-8bit":
        from torchao.optim import AdamW8bit

        return AdamW8bit
    if args.optimizer.startswith("bnb"):
        import bitsandbytes

        return bitsandbytes.optim.PagedAdamW8bit if "paged" in args.optimizer else bitsandbytes.optim.AdamW8bit
    return lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, fused=True)


adapted = "lora_" in args.model
adapters = {"lora_attn_modules": args.on.split(","), "apply_lora_to_mlp": not args.no_mlp, "lora_rank": args.rank}
build = getattr(importlib.import_module(f"torchtune.models.{args.family}"), args.model)
with training.set_default_dtype(torch.bfloat16), torch.device("cuda"):
    model = build(**adapters) if adapted else build()
if adapted:
    set_trainable_params(model, get_adapter_params(model))
if args.compile:
    training.compile_model(model, verbose=False)
if args.recompute:
    training.set_activation_checkpointing(model, auto_wrap_policy={modules.TransformerSelfAttentionLayer})
offloading = training.get_act_offloading_ctx_manager(model, args.offload)
print(f"after init: {torch.cuda.max_memory_allocated()} bytes")  # noqa: T201  (a job)

loss_fn = CEWithChunkedOutputLoss()
if args.compile:
    training.compile_loss(loss_fn, verbose=False)
model.set_num_output_chunks(loss_fn.num_output_chunks)
make = adamw()
trained = [p for p in model.parameters() if p.requires_grad]
if args.in_backward:
    training.register_optim_in_bwd_hooks(model=model, optim_dict={p: make([p], lr=2e-5) for p in trained})
else:
    optimizer = make(trained, lr=2e-5)
ignored = torch.full((args.batch, 1), loss_fn.ignore_index, device="cuda")
for _ in range(args.steps):
    tokens = torch.zeros(args.batch, args.length, dtype=torch.int64).to("cuda")
    labels = torch.zeros(args.batch, args.length, dtype=torch.int64).to("cuda")
    with offloading:
        logits = model(tokens)
    loss = loss_fn(logits, torch.hstack((labels[..., 1:], ignored)))
    del logits
    loss.backward()
    if not args.in_backward:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
peak = torch.cuda.memory_stats()["active_bytes.all.peak"]
print(f"active: {peak} bytes, {peak / 2**30:.2f} GiB")  # noqa: T201
