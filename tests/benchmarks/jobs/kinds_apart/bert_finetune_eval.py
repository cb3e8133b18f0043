import torch
from transformers import BertConfig, BertForSequenceClassification

model = BertForSequenceClassification(BertConfig(num_labels=4)).to("cuda")
opt = torch.optim.AdamW(model.parameters(), 2e-5)
for _epoch in range(2):
    model.train()
    for _ in range(3):
        b = {
            "input_ids": torch.randint(0, 30000, (16, 128)),
            "attention_mask": torch.ones(16, 128, dtype=torch.long),
            "labels": torch.randint(0, 4, (16,)),
        }
        b = {k: v.to("cuda") for k, v in b.items()}
        out = model(**b)
        out.loss.backward()
        opt.step()
        opt.zero_grad()
    model.eval()
    acc = []
    for _ in range(2):
        b = {
            "input_ids": torch.randint(0, 30000, (32, 128)).to("cuda"),
            "attention_mask": torch.ones(32, 128, dtype=torch.long).to("cuda"),
        }
        with torch.no_grad():
            acc.append(model(**b).logits.argmax(-1).cpu())
