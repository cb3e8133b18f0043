import torch
import torch.nn as nn


class T(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Embedding(16000, 512)
        self.b = nn.Embedding(16000, 512)
        self.t = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        self.g = nn.Linear(512, 16000)

    def forward(self, x, y):
        return self.g(
            self.t(
                self.a(x), self.b(y), tgt_mask=nn.Transformer.generate_square_subsequent_mask(y.shape[1]).to(y.device)
            )
        )


def run():
    m = T().cuda()
    opt = torch.optim.Adam(m.parameters(), 1e-4, betas=(0.9, 0.98))
    sch = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1.0)
    crit = nn.CrossEntropyLoss(ignore_index=0)
    for s in range(5):
        L = [100, 140, 120, 160, 110][s]
        src = torch.randint(1, 16000, (32, L)).cuda()
        tgt = torch.randint(1, 16000, (32, L + 5)).cuda()
        out = m(src, tgt[:, :-1])
        loss = crit(out.reshape(-1, 16000), tgt[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1)
        opt.step()
        sch.step()


run()
