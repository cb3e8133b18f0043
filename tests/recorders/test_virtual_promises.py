"""Values that follow from spread indices: computed when a size or the host asks for them, and true then.

80,000 choices among 8 are 640,000 bytes, more than a tensor may have that is simply computed; each is there 10,000
times.
"""

import torch
from oomdoc.recorders.virtual.private import raw_storage
from oomdoc.recorders.virtual.promises import DEPTH, Promise
from oomdoc.recorders.virtual.session import Session
from oomdoc.recorders.virtual.storages import RECORDS


def choices() -> torch.Tensor:
    return torch.rand(80_000, 8, device="cuda").argmax(1)


def promise(tensor: torch.Tensor) -> Promise:
    values = RECORDS[raw_storage(tensor)._cdata].values
    assert isinstance(values, Promise)
    return values


def times(tensor: torch.Tensor, value: int) -> int:
    return (tensor == value).nonzero().shape[0]


def test_nothing_is_computed_before_a_size_asks(gpu: Session) -> None:
    chosen = choices()
    mask = (chosen + 1) == 4
    assert not promise(chosen).made
    assert not promise(mask).made
    assert mask.nonzero().shape == (10_000, 1)
    assert promise(mask).made


def test_a_quantised_weight_computes_nothing(gpu: Session) -> None:
    """torchao's NF4: the nearest of 16 numbers for each element, two in a byte."""
    table, weight = torch.rand(16, device="cuda"), torch.rand(1 << 20, device="cuda")
    nearest = (weight[:, None] - table).abs().min(dim=-1).indices
    nibbles = nearest.to(torch.uint8)
    packed = nibbles[::2] << 4 | nibbles[1::2]
    assert not any(promise(each).made for each in (nearest, nibbles, packed))
    assert times(packed, 1) == 1 << 16  # 0 beside 1: one of the eight pairs


def test_what_is_written_later_changes_no_promise(gpu: Session) -> None:
    chosen = choices()
    doubled, small = chosen * 2, torch.tensor(1).cuda()
    raised = chosen + small
    chosen += 8
    small += 5
    assert (times(chosen, 9), times(chosen, 1)) == (10_000, 0)
    assert times(doubled, 6) == 10_000
    assert times(raised, 8) == 10_000
    assert small.item() == 6


def test_a_written_part(gpu: Session) -> None:
    chosen = choices()
    chosen[:32_000] = 9
    assert (times(chosen, 9), times(chosen, 1)) == (32_000, 6_000)
    chosen[32_000:64_000] += 100
    assert (times(chosen, 101), times(chosen, 1)) == (4_000, 2_000)


def test_a_part_of_what_is_unknown_stays_unknown(gpu: Session) -> None:
    held = torch.empty(160_000, dtype=torch.int64, device="cuda")
    chosen = choices()
    held[:80_000] = chosen
    assert not promise(chosen).made
    assert times(held, 1) == 160_000  # the largest size
    held[:] = torch.cat((chosen, chosen))
    assert times(held, 1) == 20_000


def test_an_operand_that_is_unknown_computes_no_other(gpu: Session) -> None:
    chosen, unknown = choices(), torch.empty(80_000, dtype=torch.int64, device="cuda")
    assert times(chosen * unknown, 1) == 80_000
    assert (chosen * unknown).sum().item() == 1
    assert not promise(chosen).made


def test_long_chains_forget_where_they_began(gpu: Session) -> None:
    chosen = choices()
    for _ in range(3 * DEPTH):
        chosen = chosen + 1
    assert promise(chosen).depth <= DEPTH
    assert times(chosen, 3 * DEPTH) == 10_000


def test_what_is_bigger_than_the_bound_is_unknown(gpu: Session) -> None:
    chosen = torch.rand(9 << 20, 2, device="cuda").argmax(1)  # 72 MiB
    assert RECORDS[raw_storage(chosen)._cdata].values is None
    assert times(chosen, 1) == 9 << 20
