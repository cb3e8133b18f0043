import torch
from transformers import BartConfig, BartForConditionalGeneration

m = (
    BartForConditionalGeneration(
        BartConfig(encoder_layers=6, decoder_layers=6, d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072)
    )
    .cuda()
    .eval()
)
with torch.no_grad():
    for _ in range(2):
        ids = torch.randint(4, 50000, (4, 256)).cuda()
        m.generate(input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=4, max_new_tokens=8)
