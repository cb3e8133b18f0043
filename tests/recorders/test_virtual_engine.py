"""Autograd works in place where it does on CUDA: gradients that meet, zeros that are filled, the bias of `linear`."""

from collections.abc import Callable

import pytest
import torch
from oomdoc.recorders.virtual.engine import calibrate
from oomdoc.recorders.virtual.session import Session
from oomdoc.snapshots.model import Action

SIZE = 4 * 1024 * 256


def allocations(session: Session, work: Callable[[], object], nbytes: int = SIZE) -> int:
    """How many allocations of `nbytes` `work` makes."""
    log = session.device.logs[0]
    start = len(log)
    work()
    events = zip(log.action[start:], log.size[start:], strict=True)
    return sum(1 for action, size in events if action == Action.ALLOC and size == nbytes)


def leaf() -> torch.Tensor:
    return torch.empty(1024, 256, device="cuda", requires_grad=True)


def test_the_counts_can_be_told_apart() -> None:
    counts = calibrate()
    assert counts.accumulated > (0, 0)
    assert counts.linear != counts.plain


def test_gradients_that_meet_are_added_in_place(gpu: Session) -> None:
    x = leaf()
    y = x.exp()
    total = (y * 2 + y * 3).sum()
    # exp: 1 (its backward multiplies); y*2 and y*3: one gradient each; the sum of both: none
    assert allocations(gpu, total.backward) == 3


def test_a_gradient_that_somebody_else_holds_is_not_touched(gpu: Session) -> None:
    x = leaf()
    y = x.exp()
    held: list[torch.Tensor] = []
    first = y * 3
    first.register_hook(lambda g: held.append(g))
    second = y * 4
    total = (first * 2 + second).sum()
    assert allocations(gpu, total.backward) == 4  # first*2, y*3, y*4, exp
    assert held


def test_a_second_branch_with_create_graph_is_added_out_of_place(gpu: Session) -> None:
    x = leaf()
    y = x.exp()
    total = (y * 2 + y * 3).sum()
    in_place = 3
    assert allocations(gpu, lambda: torch.autograd.grad(total, x, create_graph=True)) > in_place


def test_a_gradient_accumulates_into_the_one_before(gpu: Session) -> None:
    x = leaf()
    (x * 2).sum().backward()
    total = (x * 2).sum()
    assert allocations(gpu, total.backward) == 1  # the new gradient; the sum goes into x.grad


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x.gather(0, torch.zeros(1, 256, dtype=torch.int64, device="cuda")),
        lambda x: x[torch.zeros(3, dtype=torch.int64, device="cuda")],
        lambda x: x.max(dim=0)[0],
        lambda x: x.sort(dim=1)[0][:3],
    ],
)
def test_a_zero_gradient_is_filled_in_place(gpu: Session, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = leaf()
    total = forward(x).sum()
    sort_and_slice = 2  # the slice has its own zeros
    assert allocations(gpu, total.backward) <= sort_and_slice


def test_linear_adds_its_bias_in_place(gpu: Session) -> None:
    weight, bias = torch.empty(256, 64, device="cuda"), torch.empty(256, device="cuda")
    turned = torch.empty(4, 64, 256, device="cuda").transpose(1, 2)
    assert allocations(gpu, lambda: torch.nn.functional.linear(turned, weight, bias)) == 1


def test_a_bias_added_by_the_script_is_a_new_tensor(gpu: Session) -> None:
    weight, bias = torch.empty(64, 256, device="cuda"), torch.empty(256, device="cuda")
    x = torch.empty(1024, 64, device="cuda")
    assert allocations(gpu, lambda: x @ weight + bias) == 2


def test_no_node_is_kept_alive(gpu: Session) -> None:
    x = leaf()
    x.exp().sum().backward()
    x.grad = None
    del x
    handles = sum(gpu.device.allocators[0].block_size(a) for a in gpu.tracker.handles.values())
    assert gpu.device.allocators[0].allocated_bytes == handles
