"""A Hugging Face model from a config under Trainer: train, evaluate, save, resume, generate."""

import os
import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (128,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


config = GPT2Config(vocab_size=1000, n_positions=128, n_embd=256, n_layer=2, n_head=4)
model = GPT2LMHeadModel(config)
folder = tempfile.mkdtemp()
arguments = TrainingArguments(
    output_dir=folder,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=4,
    save_steps=2,
    logging_steps=1,
    bf16=True,
    gradient_checkpointing="checkpointing" in sys.argv,
    eval_strategy="steps",
    eval_steps=2,
    report_to=[],
    dataloader_num_workers=1,
)
assert arguments.device == torch.device("cuda", 0), arguments.device
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens())
trainer.train()
assert next(model.parameters()).is_cuda
assert trainer.state.global_step == 4
assert os.path.exists(os.path.join(folder, "checkpoint-4", "model.safetensors"))
print(trainer.evaluate())
trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-2"))
trainer.save_model(os.path.join(folder, "final"))
again = GPT2LMHeadModel.from_pretrained(os.path.join(folder, "final")).cuda()
out = again.generate(torch.ones(2, 5, dtype=torch.long, device="cuda"), max_new_tokens=8, do_sample=False)
print(out.shape)
assert out.shape == (2, 13)
