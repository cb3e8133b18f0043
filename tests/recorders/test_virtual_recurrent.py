"""Recurrent layers: one flat weight, one output, a marked reserve, gradients that are views of one buffer."""

import pytest
import torch
from oomdoc.recorders.virtual.session import Session

STEPS, BATCH, INPUTS, UNITS = 50, 16, 32, 64


def test_parameters_share_one_buffer(gpu: Session) -> None:
    """`.cuda()` flattens the weights, as cuDNN wants them: exactly their bytes, in one allocation."""
    layer = torch.nn.LSTM(INPUTS, UNITS, num_layers=2).cuda()
    total = sum(p.numel() for p in layer.parameters()) * 4
    assert torch.cuda.memory_allocated() == -(-total // 512) * 512
    assert len({p.untyped_storage()._cdata for p in layer.parameters()}) == 1


@pytest.mark.parametrize(("kind", "per_unit"), [("LSTM", 6), ("GRU", 5), ("RNN", 2)])
def test_forward_keeps_output_states_and_reserve(gpu: Session, kind: str, per_unit: int) -> None:
    layer = getattr(torch.nn, kind)(INPUTS, UNITS).cuda()
    x = torch.ones(STEPS, BATCH, INPUTS, device="cuda")
    before = torch.cuda.memory_allocated()
    out, state = layer(x)
    rows, states = STEPS * BATCH, (2 if kind == "LSTM" else 1)
    expected = rows * UNITS * 4 + states * 2 * BATCH * UNITS * 4 + rows * UNITS * per_unit * 4
    assert torch.cuda.memory_allocated() - before == expected
    assert any("RNN reserve" in source for source in gpu.tracker.estimated)
    log = gpu.device.logs[0]
    assert rows * UNITS * per_unit * 4 in [log.size[i] for i, mark in enumerate(log.estimated) if mark]
    assert out.shape == (STEPS, BATCH, UNITS)
    out.sum().backward()
    storages = {p.grad.untyped_storage()._cdata for p in layer.parameters() if p.grad is not None}
    assert len(storages) == 1
    del state


def test_evaluation_keeps_no_reserve(gpu: Session) -> None:
    layer = torch.nn.LSTM(INPUTS, UNITS).cuda().eval()
    with torch.inference_mode():
        layer(torch.ones(STEPS, BATCH, INPUTS, device="cuda"))
    assert not any("RNN reserve" in source for source in gpu.tracker.estimated)


def test_batch_first_bidirectional_with_dropout_and_autocast(gpu: Session) -> None:
    layer = torch.nn.GRU(INPUTS, UNITS, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        out, state = layer(torch.ones(BATCH, STEPS, INPUTS, device="cuda"))
    assert out.shape == (BATCH, STEPS, 2 * UNITS)
    assert out.dtype is torch.float16
    assert state.shape == (4, BATCH, UNITS)
    out.float().sum().backward()
    assert layer.weight_hh_l1.grad is not None


def test_packed_sequences(gpu: Session) -> None:
    layer = torch.nn.LSTM(INPUTS, UNITS).cuda()
    x = torch.ones(5, 3, INPUTS, device="cuda")
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]))
    out, _ = layer(packed)
    assert out.data.shape == (10, UNITS)


def test_on_the_cpu_steps_are_computed(gpu: Session) -> None:
    layer = torch.nn.GRU(2, 3)
    out, _ = layer(torch.ones(4, 1, 2))
    assert out.shape == (4, 1, 3)
    assert bool(out.abs().sum() > 0)
