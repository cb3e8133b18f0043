"""Every event knows its step, phase, module and category, and a dump of a virtual run is a sound snapshot."""

import sys
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from oomdoc.diagnosers.interface import CATEGORIES
from oomdoc.recorders.hooks import StopAfterSteps
from oomdoc.recorders.virtual.session import Session, virtual_session
from oomdoc.recorders.virtual.stacks import StackTable
from oomdoc.snapshots.check import self_check
from oomdoc.snapshots.model import Snapshot
from oomdoc.snapshots.reader import from_dict
from oomdoc.snapshots.timeline import extent, lifetimes, live_at
from oomdoc.snapshots.writer import to_dict
from torch import nn
from torch.optim import optimizer as optimizer_module
from torch.utils.checkpoint import checkpoint

from .conftest import A100_LIKE

WIDTH = 64
PARAMETERS = 2 * (WIDTH * WIDTH + WIDTH)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.register_buffer("scale", torch.ones(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def train(steps: int, *, zero: bool = True, wrap: Callable[[nn.Module], nn.Module] | None = None) -> object:
    model: nn.Module = Model().cuda()
    if wrap:
        model = wrap(model)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        x = torch.ones(512, WIDTH).cuda()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if zero:
            optimizer.zero_grad()
    return model, optimizer, loss, x


def held_at(snapshot: Snapshot, event: int) -> Counter[str]:
    device, recording = snapshot.devices[0], snapshot.recording
    assert recording is not None
    column, rows = recording.devices[0].category, lifetimes(device)
    held: Counter[str] = Counter()
    for row in live_at(rows, event):
        category = int(column[rows.birth[row]])
        held[CATEGORIES[category] if category >= 0 else "none"] += int(rows.requested[row])
    return held


def event_of(snapshot: Snapshot, step: int, phase: str) -> int:
    assert snapshot.recording is not None
    return next(m.event for m in snapshot.recording.devices[0].marks if (m.step, m.phase) == (step, phase))


def test_a_dump_is_sound_and_survives_a_round_trip(gpu: Session) -> None:
    kept = train(2)
    snapshot = gpu.snapshot(["train.py"])
    assert kept
    assert self_check(snapshot) == ()
    assert extent(snapshot.devices[0]).complete_from_start
    again = from_dict(to_dict(snapshot))
    assert self_check(again) == ()
    ours, theirs = snapshot.recording, again.recording
    assert ours is not None
    assert theirs is not None
    assert theirs.devices[0].category.tolist() == ours.devices[0].category.tolist()
    assert (theirs.devices[0].marks, theirs.modules) == (ours.devices[0].marks, ours.modules)
    assert not again.problems


def test_phases_follow_each_other_and_steps_count(gpu: Session) -> None:
    kept = train(3)
    snapshot = gpu.snapshot()
    assert kept
    assert snapshot.recording is not None
    marks = [(mark.step, mark.phase) for mark in snapshot.recording.devices[0].marks]
    assert marks[0] == (1, "setup")
    for step in (1, 2, 3):
        phases = [phase for s, phase in marks if s == step and phase != "other"]
        assert phases[-3:] == ["forward", "backward", "optimizer"]


def test_what_a_person_can_count_is_exact_in_the_second_backward(gpu: Session) -> None:
    kept = train(2)
    snapshot = gpu.snapshot()
    assert kept
    held = held_at(snapshot, event_of(snapshot, 2, "optimizer"))
    assert held["parameter"] == 4 * PARAMETERS
    assert held["gradient"] == 4 * PARAMETERS
    assert held["optimizer_state"] == 2 * 4 * PARAMETERS
    assert held["buffer"] == 4000
    assert held["input"] == 4 * 512 * WIDTH


def test_activations_are_those_saved_for_backward(gpu: Session) -> None:
    kept = train(1)
    snapshot = gpu.snapshot()
    assert kept
    held = held_at(snapshot, event_of(snapshot, 1, "backward") - 1)
    relu_outputs = 2 * 4 * 512 * WIDTH  # saved once: relu keeps its result, the next linear takes the same
    assert held["activation"] == relu_outputs + 4  # and the loss; what backward starts with is made in its likeness


def test_backward_knows_the_module_of_the_forward(gpu: Session) -> None:
    kept = train(1)
    snapshot = gpu.snapshot()
    assert kept
    recording = snapshot.recording
    assert recording is not None
    start, end = event_of(snapshot, 1, "backward"), event_of(snapshot, 1, "optimizer")
    modules = {recording.modules[i] for i in recording.devices[0].module[start:end] if i >= 0}
    assert {"layers.0", "layers.1"} <= modules


def test_recomputed_activations_are_activations(gpu: Session) -> None:
    class Checkpointed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checkpoint(self.inner, x, use_reentrant=False)
            return out

    kept = train(1, wrap=Checkpointed)
    snapshot = gpu.snapshot()
    assert kept
    device, recording = snapshot.devices[0], snapshot.recording
    assert recording is not None
    start, end = event_of(snapshot, 1, "backward"), event_of(snapshot, 1, "optimizer")
    column = recording.devices[0].category[start:end]
    born = [
        (CATEGORIES[category], int(size))
        for category, size, action in zip(
            column, device.trace.size[start:end], device.trace.action[start:end], strict=True
        )
        if action == 0 and category >= 0
    ]
    assert born.count(("activation", 4 * 512 * WIDTH)) >= 2


def test_a_model_that_never_ran_is_still_known(gpu: Session) -> None:
    model = Model().cuda()
    held = held_at(snapshot := gpu.snapshot(), len(snapshot.devices[0].trace) - 1)
    assert model
    assert held["parameter"] == 4 * PARAMETERS
    assert held["buffer"] == 4000


def test_functional_training_has_activations_too(gpu: Session) -> None:
    w = torch.ones(256, 256, device="cuda", requires_grad=True)
    y = w.exp().exp()
    held = held_at(snapshot := gpu.snapshot(), len(snapshot.devices[0].trace) - 1)
    assert y is not None
    assert held["activation"] == 2 * 4 * 256 * 256


def test_recording_stops_when_the_steps_are_done() -> None:
    with virtual_session(A100_LIKE, steps=2) as session:
        with pytest.raises(StopAfterSteps):
            train(5)
        assert session.hooks.completed == 2


def test_hooks_are_gone_after_the_session() -> None:
    before = torch.autograd.graph._engine_run_backward  # type: ignore[attr-defined]
    with virtual_session(A100_LIKE):
        train(1)
    assert torch.autograd.graph._engine_run_backward is before  # type: ignore[attr-defined]
    assert not nn.modules.module._global_forward_hooks
    assert not optimizer_module._global_optimizer_pre_hooks


def test_facts_name_the_job(gpu: Session) -> None:
    kept = train(2)
    facts = gpu.snapshot().recording.facts  # type: ignore[union-attr]
    assert kept
    assert facts["steps"] == 2
    assert facts["backwards_per_step"] == 1
    assert {"shape": [512, WIDTH], "dtype": "float32", "count": 2} in facts["inputs"]  # type: ignore[operator]
    assert facts["optimizers"][0]["state_bytes"] == 2 * 4 * PARAMETERS  # type: ignore[index]


def test_a_hand_written_optimizer_is_stepped_by_its_backward_passes() -> None:
    with virtual_session(A100_LIKE, steps=3) as session:
        model = Model().cuda()

        def descend() -> None:
            for _ in range(10):
                model(torch.ones(8, WIDTH, device="cuda")).sum().backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad  # type: ignore[operator]
                        parameter.grad = None

        with pytest.raises(StopAfterSteps):
            descend()
        assert session.hooks.completed == 3


def test_gradient_accumulation_does_not_count_as_steps() -> None:
    with virtual_session(A100_LIKE, steps=2) as session:
        model = Model().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for micro in range(8):
            model(torch.ones(8, WIDTH, device="cuda")).sum().backward()
            if micro % 4 == 3:
                optimizer.step()
        assert session.hooks.completed == 2
        assert session.hooks.backwards_per_step == 4


def test_code_that_is_gone_is_not_mistaken_for_what_takes_its_place() -> None:
    """Stacks are told apart by the identity of code objects, which Python gives again."""
    table = StackTable()
    table.stop_at(sys._getframe().f_code)
    for number in range(50):
        exec(compile(f"def made{number}(): table.capture()\nmade{number}()", "made.py", "exec"), {"table": table})
    frozen = table.freeze()
    assert [frozen.of(index)[0].name for index in range(len(table))] == [f"made{number}" for number in range(50)]
