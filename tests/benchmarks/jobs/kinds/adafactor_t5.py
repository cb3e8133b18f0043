import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

m = T5ForConditionalGeneration(
    T5Config(
        d_model=768, d_ff=3072, num_layers=6, num_heads=12, vocab_size=32128, decoder_start_token_id=0, pad_token_id=0
    )
).cuda()
opt = Adafactor(m.parameters(), lr=1e-3, relative_step=False)
for _i in range(4):
    x = torch.randint(0, 32000, (8, 256)).cuda()
    y = torch.randint(0, 32000, (8, 64)).cuda()
    m(input_ids=x, labels=y).loss.backward()
    opt.step()
    opt.zero_grad()
