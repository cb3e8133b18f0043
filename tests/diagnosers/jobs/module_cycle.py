"""C67: every trial builds a new model whose hook captures it: only the cycle collector would free the old ones."""

import gc

import torch
import torch.nn as nn


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2048, 2048)
        self.seen = None
        self.body.register_forward_hook(lambda module, args, output: setattr(self, "seen", output.shape))


gc.disable()
for trial in range(20):
    model = Probe().cuda()  # here
    del model
gc.enable()
