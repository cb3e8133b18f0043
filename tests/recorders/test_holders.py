"""Who keeps tensors of the GPU, and that odd objects of the user's cost no recording."""

import gc
from collections import deque

import torch
from oomdoc.recorders.holders import holders
from oomdoc.recorders.hooks import living
from oomdoc.recorders.virtual.session import Session
from torch import nn


class Meter:
    def __init__(self) -> None:
        self.kept: deque[torch.Tensor] = deque(maxlen=4)


class HalfMade(nn.Module):
    def __init__(self) -> None:
        gc.collect()  # it exists, and `super().__init__()` comes too late, or never


class Odd(dict[str, object]):
    def values(self) -> object:  # type: ignore[override]
        raise RuntimeError("not now")


def test_a_deque_is_named(gpu: Session) -> None:
    meter = Meter()
    meter.kept.append(torch.ones(1 << 16, device="cuda"))
    assert "deque `kept`, attribute of Meter" in [row["holder"] for row in holders()]


def test_a_module_that_is_half_made_is_no_fault(gpu: Session) -> None:
    half, whole = HalfMade(), nn.Linear(2, 2)
    found = {id(each) for each in living(nn.Module)}
    assert id(whole) in found
    assert id(half) not in found
    assert gpu.snapshot().recording is not None


def test_an_object_that_cannot_be_looked_at_is_no_fault(gpu: Session) -> None:
    odd = Odd(a=torch.ones(1 << 16, device="cuda"))
    assert holders() == []
    assert gpu.snapshot().recording is not None
    assert odd
