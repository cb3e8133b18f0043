import torch
import torch.nn as nn

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6).cuda()
head = nn.Linear(512, 1000).cuda()
opt = torch.optim.AdamW([*model.parameters(), *head.parameters()])
for _ in range(4):
    for _ in range(4):
        x = torch.randn(8, 128, 512).cuda(non_blocking=True)
        y = torch.randint(1000, (8,)).cuda()
        loss = nn.functional.cross_entropy(head(model(x).mean(1)), y) / 4
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
