import torch
import torch.nn as nn

model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(4):
    opt.zero_grad(set_to_none=False)
    for _ in range(2):
        x = torch.randn(8, 128, 512).cuda()
        model(x).pow(2).mean().backward()
    opt.step()
