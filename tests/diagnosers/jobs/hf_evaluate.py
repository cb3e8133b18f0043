"""C39: Trainer's evaluation keeps the logits of every batch on the GPU."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 20000, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


model = GPT2LMHeadModel(GPT2Config(vocab_size=20000, n_positions=64, n_embd=128, n_layer=2, n_head=4))
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    max_steps=2,
    report_to=[],
    save_strategy="no",
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=Tokens(),
    eval_dataset=Tokens(),
    compute_metrics=lambda predictions: {"accuracy": 0.0},
)
trainer.train()
trainer.evaluate()
