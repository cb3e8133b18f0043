import torch
import torch.nn as nn

layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
trunk = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
patches = nn.Conv2d(3, 256, 16, 16)
head = nn.Linear(256, 1000)
model = nn.ModuleList([patches, trunk, head]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(5):
    images = torch.randn(32, 3, 224, 224).cuda()
    labels = torch.randint(1000, (32,)).cuda()
    tokens = patches(images).flatten(2).transpose(1, 2)
    loss = nn.functional.cross_entropy(head(trunk(tokens).mean(1)), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
