"""Train a small Llama with the Hugging Face Trainer, from a config: no download.

    python train_hf.py --batch-size 8 --gradient-checkpointing
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomText(Dataset):
    def __init__(self, vocab, length, size):
        self.vocab, self.length, self.size = vocab, length, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocab, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    args = parser.parse_args()

    config = LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.width,
        intermediate_size=args.width * 11 // 4,
        num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64,
        num_key_value_heads=max(1, args.width // 256),
        max_position_embeddings=args.length,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            max_steps=args.steps,
            bf16=True,
            gradient_checkpointing=args.gradient_checkpointing,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
        )
        data = RandomText(args.vocab, args.length, args.steps * args.batch_size)
        Trainer(model=model, args=arguments, train_dataset=data).train()


if __name__ == "__main__":
    main()
