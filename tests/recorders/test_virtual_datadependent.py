"""Sizes that depend on values: exact for known ones, the largest and noted for others, refused without a bound."""

from collections.abc import Callable

import pytest
import torch
from oomdoc.recorders.errors import UnsupportedOperationError
from oomdoc.recorders.virtual.session import Session

KNOWN = [True, False, True, True]


def assumed(session: Session) -> int:
    return sum(count for note, count in session.notes.items() if "the largest possible was taken" in note)


@pytest.mark.parametrize(
    ("select", "known", "unknown"),
    [
        (lambda mask, x: mask.nonzero(), (3, 1), (4, 1)),
        (lambda mask, x: torch.where(mask)[0], (3,), (4,)),
        (lambda mask, x: x[mask], (3, 5), (4, 5)),
        (lambda mask, x: x.masked_select(mask.unsqueeze(1)), (15,), (20,)),
        (lambda mask, x: mask.long().unique(), (2,), (4,)),
        (lambda mask, x: torch.argwhere(mask), (3, 1), (4, 1)),
    ],
)
def test_known_masks_are_counted(
    gpu: Session, select: Callable[..., torch.Tensor], known: tuple[int, ...], unknown: tuple[int, ...]
) -> None:
    x = torch.rand(4, 5, device="cuda")
    assert select(torch.tensor(KNOWN).cuda(), x).shape == known
    assert assumed(gpu) == 0
    assert select(torch.rand(4, device="cuda") > 0.5, x).shape == unknown
    assert assumed(gpu) >= 1


def test_selection_has_a_gradient(gpu: Session) -> None:
    x = torch.rand(4, 5, device="cuda", requires_grad=True)
    x[torch.rand(4, device="cuda") > 0.5].sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (4, 5)


def test_masked_assignment(gpu: Session) -> None:
    """A number is filled in without looking for places; a tensor of values needs them."""
    x = torch.rand(400, 5, device="cuda")
    mask = torch.rand(400, device="cuda") > 0.5
    peak = torch.cuda.max_memory_allocated
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x[mask] = 0.0
    assert peak() - before <= 512
    x[mask] = torch.rand(400, 5, device="cuda")[mask]
    assert peak() - before > 400 * 8


def test_estimates_are_marked_on_their_events(gpu: Session) -> None:
    (torch.rand(4, device="cuda") > 0.5).nonzero()
    log = gpu.device.logs[0]
    assert [log.size[i] for i, mark in enumerate(log.estimated) if mark] == [32]


def test_bincount_and_repeat_interleave(gpu: Session) -> None:
    known = torch.tensor([1, 5, 2]).cuda()
    assert known.bincount().shape == (6,)
    assert known.bincount(minlength=10).shape == (10,)
    assert torch.ones(3, 2, device="cuda").repeat_interleave(known, 0).shape == (8, 2)
    unknown = torch.randint(0, 9, (3,), device="cuda")
    assert unknown.bincount(minlength=10).shape == (10,)
    assert torch.ones(3, 2, device="cuda").repeat_interleave(unknown, 0, output_size=20).shape == (20, 2)


def test_sizes_without_a_bound_stop_the_run(gpu: Session) -> None:
    unknown = torch.randint(0, 9, (3,), device="cuda")
    with pytest.raises(UnsupportedOperationError, match="bincount"):
        unknown.bincount()
    with pytest.raises(UnsupportedOperationError, match="output_size"):
        torch.ones(3, 2, device="cuda").repeat_interleave(unknown, 0)


def test_unique_with_everything(gpu: Session) -> None:
    values, inverse, counts = torch.rand(6, device="cuda").unique(return_inverse=True, return_counts=True)
    assert (values.shape, inverse.shape, counts.shape) == ((6,), (6,), (6,))
    rows = torch.rand(6, 2, device="cuda").unique(dim=0)
    assert rows.shape == (6, 2)
    assert torch.rand(6, device="cuda").unique_consecutive().shape == (6,)
