import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import BertConfig, BertForMaskedLM

dist.init_process_group("nccl")
torch.cuda.set_device(0)
m = BertForMaskedLM(BertConfig(num_hidden_layers=6)).cuda()
m = DDP(m, device_ids=[0], gradient_as_bucket_view=True)
opt = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True)
for _i in range(4):
    ids = torch.randint(0, 30000, (8, 256)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = m(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
