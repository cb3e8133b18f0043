"""Host memory that offloading takes, to the byte."""

import torch
from oomdoc.recorders.virtual.session import Session
from torch import nn

WIDTH = 1024
WEIGHT = 4 * WIDTH * WIDTH


def test_offloaded_parameters_states_and_pinned_copies_are_counted(gpu: Session) -> None:
    """The optimizer works on the host; the GPU gets a copy of the weight through pinned memory."""
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
    staged = layer.weight.detach().pin_memory()
    on_gpu = staged.cuda(non_blocking=True).requires_grad_()
    (torch.ones(2, WIDTH, device="cuda") @ on_gpu).sum().backward()
    assert on_gpu.grad is not None
    layer.weight.grad = on_gpu.grad.cpu()
    optimizer.step()
    layer(torch.ones(2, WIDTH))
    recording = gpu.snapshot().recording
    assert recording is not None
    host = recording.facts["host"]
    assert isinstance(host, dict)
    assert host["parameter"] == 2 * WEIGHT  # and its gradient
    assert 2 * WEIGHT <= host["optimizer_state"] <= 2 * WEIGHT + 64  # and the step counter
    assert host["pinned"] == WEIGHT
