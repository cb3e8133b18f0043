"""C48: one CUDA graph, and one pool, for each sequence length."""

import torch
import torch.nn as nn

model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))]).cuda()
graphs = {}
with torch.no_grad():
    for length in range(512, 1024, 64):
        x = torch.randn(length, 1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        graphs[length] = graph, x, y
