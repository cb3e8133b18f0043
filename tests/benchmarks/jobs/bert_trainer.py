"""BERT-large under the Hugging Face Trainer on random tokens of length 512, as the Transformers docs measured it.

oomdoc run --gpu v100-16gb bert_trainer.py --batch 4 --optim adamw_torch
"""

import argparse
import tempfile
from functools import partial

import timm_anyway  # before transformers
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--optim", default="adamw_torch")
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()

large = BertConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    attn_implementation="eager",  # the Transformers of 2022 had no other
)
model = BertForSequenceClassification(large).to("cuda")
model.zero_grad = partial(model.zero_grad, set_to_none=False)  # torch's default before 2.0
rows = [{"input_ids": torch.randint(100, 30000, (512,)), "labels": torch.tensor(0)} for _ in range(64)]
with tempfile.TemporaryDirectory() as folder:
    training = TrainingArguments(
        folder,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulate,
        gradient_checkpointing=args.checkpoint,
        optim=args.optim,
        max_steps=4,
        report_to=[],
    )
    Trainer(model=model, args=training, train_dataset=rows).train()
print(f"allocated: {torch.cuda.max_memory_allocated()} bytes")  # noqa: T201  (a job)
print(f"reserved: {torch.cuda.max_memory_reserved()} bytes")  # noqa: T201
