"""Values that the host reads: true where they came from the host, a counted policy elsewhere."""

import pytest
import torch
from oomdoc.recorders.virtual.session import Session
from torch.nn import functional as F  # noqa: N812  # everyone's name for it


def policy_reads(session: Session) -> int:
    return sum(count for note, count in session.notes.items() if "value was read from the GPU" in note)


def test_small_host_tensors_keep_their_values(gpu: Session) -> None:
    lengths = torch.tensor([3, 1, 2]).cuda()
    assert lengths.tolist() == [3, 1, 2]
    assert (lengths + 1).sum().item() == 9
    assert lengths.max().item() == 3
    assert lengths[1:].tolist() == [1, 2]
    assert (lengths > 1).tolist() == [True, False, True]
    assert policy_reads(gpu) == 0


def test_what_was_answered_is_said_in_a_sentence(gpu: Session) -> None:
    torch.randint(9, (1,), device="cuda").item()
    torch.rand(1, device="cuda").item()
    said = {note.split(" value ")[0] for note in gpu.notes if "was read from the GPU" in note}
    assert said == {"an integer", "a float"}


def test_factories_are_known(gpu: Session) -> None:
    assert torch.arange(4, device="cuda").tolist() == [0, 1, 2, 3]
    assert torch.full((2,), 7.5, device="cuda").tolist() == [7.5, 7.5]
    big = torch.rand(1000, 1000, device="cuda")
    assert torch.zeros_like(big[0, :3]).tolist() == [0, 0, 0]
    assert policy_reads(gpu) == 0


def test_in_place_operations_change_the_value(gpu: Session) -> None:
    counter = torch.zeros((), device="cuda", dtype=torch.int64)
    view = counter.view(1)
    for _ in range(3):
        counter += 1
    assert counter.item() == 3
    assert view.tolist() == [3]
    counter.copy_(torch.tensor(9))
    assert int(counter) == 9


def test_what_is_not_known_is_not_kept(gpu: Session) -> None:
    """A known tensor that an unknown one is added to is unknown; the other operand stays known."""
    total = torch.zeros(4, device="cuda")
    step = torch.ones(4, device="cuda")
    total += torch.rand(4, device="cuda") * step
    assert step.tolist() == [1.0] * 4
    before = policy_reads(gpu)
    assert total.tolist() == [1.0] * 4
    assert policy_reads(gpu) == before + 1


def test_random_and_uninitialised_memory_is_unknown(gpu: Session) -> None:
    for tensor in (
        torch.rand(2, device="cuda"),
        torch.empty(2, device="cuda"),
        torch.zeros(2, device="cuda").normal_(),
    ):
        before = policy_reads(gpu)
        tensor.tolist()
        assert policy_reads(gpu) == before + 1


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("x.sum().item()", 1.0),
        ("bool(torch.isnan(x).any())", False),
        ("bool(torch.isfinite(x).all())", True),
        ("(x > 0).all().item()", True),
        ("x.argmax().item()", 1),
        ("torch.equal(x, x + 0)", True),
        ("torch.allclose(x, x)", True),
        ("float(x.max())", 1.0),
        ("int((x > 0).sum())", 1),
    ],
)
def test_policy(gpu: Session, expression: str, answer: object) -> None:
    x = torch.rand(100, 100, device="cuda")
    assert eval(expression, {"x": x, "torch": torch}) == answer


def test_policy_reads_name_the_line(gpu: Session) -> None:
    torch.rand(10, device="cuda").sum().item()
    [note] = [note for note in gpu.notes if "value was read" in note]
    assert "test_virtual_values.py:" in note
    assert "answered 1.0" in note


def test_equal_of_known_values_is_the_truth(gpu: Session) -> None:
    a = torch.tensor([1, 2]).cuda()
    assert torch.equal(a, a.clone())
    assert not torch.equal(a, a + 1)


def test_grad_scaler_steps_and_grows(gpu: Session) -> None:
    """No infinity is found: every step is taken (the optimizer has its state), and the scale doubles when due."""
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(4, 64, device="cuda")).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2048.0
    assert len(optimizer.state) == 2


def test_values_do_not_outlive_a_resize(gpu: Session) -> None:
    x = torch.arange(4, device="cuda")
    x.resize_(8)
    before = policy_reads(gpu)
    x.tolist()
    assert policy_reads(gpu) == before + 1


def test_steps_of_a_fused_optimizer(gpu: Session) -> None:
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    assert all(len(state) == 3 for state in optimizer.state.values())


def test_one_known_operand_can_decide(gpu: Session) -> None:
    unknown = torch.rand(3, device="cuda") > 0.5
    done = torch.full((3,), True, device="cuda")
    assert (unknown | done).tolist() == [True] * 3
    assert (torch.ones(3, dtype=torch.long, device="cuda") & ~(unknown | done)).max().item() == 0
    assert not torch.logical_and(~done, unknown).any()
    unknown |= done
    assert unknown.tolist() == [True] * 3
    assert gpu.notes == {}


def test_counts_of_unknown_values_sum_to_their_number(gpu: Session) -> None:
    experts = (torch.rand(1001, device="cuda") * 8).long()
    counts = torch.bincount(experts, minlength=8).tolist()
    assert sum(counts) == 1001
    assert max(counts) - min(counts) <= 1
    ends = torch.bincount(experts, minlength=8).cumsum(0).tolist()
    assert ends[-1] == 1001  # what is computed from the counts agrees with them
    assert torch.histc(torch.rand(100, device="cuda"), bins=7).sum().item() == 100
    assert len(torch.rand(1001, 4, device="cuda").split(counts)) == 8
    assert any("the counts of bincount at" in note and "spread evenly" in note for note in gpu.notes)
    assert any("answered 125 to 126" in note for note in gpu.notes)


def test_weighted_and_known_counts_are_not_spread(gpu: Session) -> None:
    known = torch.tensor([0, 0, 5]).cuda()
    assert known.bincount(minlength=8).tolist() == [2, 0, 0, 0, 0, 1, 0, 0]
    unknown = (torch.rand(100, device="cuda") * 8).long()
    assert unknown.bincount(torch.rand(100, device="cuda"), 8).tolist() == [1.0] * 8
    assert not any("spread evenly" in note for note in gpu.notes)


def test_a_router_s_choices_agree_with_each_other(gpu: Session) -> None:
    """1001 tokens choose 2 of 8 experts each: however a script counts them, it is all of them, evenly."""
    chosen = torch.rand(1001, 8, device="cuda").topk(2).indices
    even = [251, 251, 250, 250, 250, 250, 250, 250]
    assert F.one_hot(chosen.flatten(), 8).sum(0).tolist() == even
    assert torch.zeros(1001, 8, dtype=torch.int64, device="cuda").scatter_(1, chosen, 1).sum(0).tolist() == even
    values, counts = torch.unique(chosen, return_counts=True)
    assert (values.tolist(), counts.tolist()) == (list(range(8)), even)
    assert chosen.flatten().bincount().cumsum(0)[-1].item() == 2002
    mask = F.one_hot(chosen, 8).permute(2, 1, 0)
    assert [len(torch.where(mask[expert])[1]) for expert in range(8)] == even
    assert torch.rand(1001, 4, device="cuda")[(chosen == 3).any(1)].shape == (250, 4)
    assert any("spread evenly" in note for note in gpu.notes)


def test_choices_fewer_than_what_there_is_to_choose_from_stay_unknown(gpu: Session) -> None:
    """The next tokens of a batch are no pattern: none of them ends the text."""
    tokens = torch.rand(4, 50, device="cuda").argmax(-1)
    assert not torch.isin(tokens, torch.tensor([0, 1, 2, 3], device="cuda")).any()
    assert len(torch.unique(tokens, return_counts=True)[1]) == 4


def test_an_unknown_mask_and_its_inverse_are_opposites(gpu: Session) -> None:
    """What is written under a mask that reads False is not there; of sizes the largest is taken all the same."""
    ended = torch.rand(3, 5, device="cuda") > 0.5
    assert not ended.any()
    assert (~ended).tolist() == [[True] * 5] * 3
    last = torch.full((3,), 5, device="cuda")
    last[ended.any(1)] = ended.int().argmax(1)[ended.any(1)]
    assert last.tolist() == [5] * 3
    assert torch.where(ended, torch.rand(3, 5, device="cuda"), 7.0).shape == (3, 5)
    assert torch.rand(3, 5, device="cuda")[ended].shape == (15,)


def test_a_written_value_is_as_sure_as_what_was_written(gpu: Session) -> None:
    counts = torch.zeros(8, dtype=torch.int64, device="cuda")
    counts += torch.bincount(torch.rand(64, 8, device="cuda").argmax(1), minlength=8)
    before = policy_reads(gpu)
    assert counts.tolist() == [8] * 8
    assert policy_reads(gpu) == before + 1
