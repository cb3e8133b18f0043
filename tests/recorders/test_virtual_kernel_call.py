"""Scratch in the trace: its place between an operation's outputs, its order of frees, handles that stay."""

import pytest
import torch
from oomdoc.recorders.virtual.session import Session
from oomdoc.snapshots.model import Action


@pytest.fixture
def events(gpu: Session) -> "Events":
    return Events(gpu)


class Events:
    """What happened on device 0 since `mark`: +size for an allocation, -size for a free."""

    def __init__(self, session: Session) -> None:
        self.log = session.device.logs[0]
        self.start = 0

    def mark(self) -> None:
        self.start = len(self.log)

    def since(self) -> list[int]:
        signs = {Action.ALLOC: 1, Action.FREE_COMPLETED: -1}
        return [
            signs[Action(action)] * size
            for action, size in zip(self.log.action[self.start :], self.log.size[self.start :], strict=True)
            if action in signs
        ]


def test_handle_is_allocated_once_after_the_first_product(events: Events) -> None:
    a = torch.ones(64, 64, device="cuda")
    events.mark()
    b = a @ a
    c = a @ a
    assert events.since() == [64 * 64 * 4, 8519680, 64 * 64 * 4]
    del b, c


def test_backward_has_its_own_handle(events: Events, gpu: Session) -> None:
    a = torch.ones(64, 64, device="cuda", requires_grad=True)
    (a @ a).sum().backward()
    assert sorted(key[2] for key in gpu.tracker.handles) == [False, True]


def test_reduction_workspace_comes_after_the_output_and_goes_semaphores_first(events: Events) -> None:
    x = torch.ones(1500, 512, device="cuda")
    events.mark()
    y = x.sum(0)
    assert events.since() == [2048, 6291456, 16, -16, -6291456]
    del y


def test_accumulating_index_put_frees_the_remainder_early(events: Events) -> None:
    """The order of a recorded backward of `weight[ids]`: remainder, product, then the remainder goes."""
    weight = torch.ones(10000, 512, device="cuda")
    ids = torch.zeros(1000, dtype=torch.int64, device="cuda")
    rows = torch.ones(1000, 512, device="cuda")
    events.mark()
    weight.index_put_((ids,), rows, accumulate=True)
    assert events.since() == [8000, 8000, -8000, 8000, 8000, 8000, 1, -1, -8000, -8000, -8000, -8000]


def test_where_with_a_python_scalar_makes_a_device_scalar(events: Events) -> None:
    mask = torch.ones(4, 4, dtype=torch.bool, device="cuda")
    x = torch.ones(4, 4, device="cuda")
    events.mark()
    y = torch.where(mask, x, float("-inf"))
    assert events.since() == [4, 64, -4]
    del y


def test_scratch_is_given_back_when_memory_runs_out(gpu: Session) -> None:
    """The sum's int64 copy of a mask does not fit: the script gets the error, nothing stays allocated."""
    mask = torch.ones(6 << 30, dtype=torch.bool, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        mask.sum()
    assert torch.cuda.memory_allocated() == before


def test_estimates_are_counted(gpu: Session) -> None:
    torch.linalg.inv(torch.ones(8, 8, device="cuda"))
    assert any("cuSOLVER" in source for source in gpu.tracker.estimated)


def test_backward_of_indexing_sorts_into_its_one_gradient(events: Events) -> None:
    """As recorded on an A100: one zeroed gradient, filled in place through the sort's buffers."""
    weight = torch.ones(10000, 512, device="cuda", requires_grad=True)
    rows = weight[torch.zeros(1000, dtype=torch.int64, device="cuda")]
    grad = torch.ones_like(rows)
    events.mark()
    rows.backward(grad)
    assert [size for size in events.since() if size > 0] == [20480000, 8000, 8000, 8000, 8000, 8000, 1]
