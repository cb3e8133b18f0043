"""Where steps end, from the optimizer's and the profiler's ranges in a bare snapshot."""

from pathlib import Path

import pytest
from oomdoc.diagnosers.attribution.steps import recorded_boundaries
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Mark
from oomdoc.snapshots.timeline import live_bytes

ADAM, SGD = "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step"


def ends(times: list[int], notes: list[tuple[str, str, int]], device: int = 0) -> list[tuple[int, int]]:
    """(step, its last event) of a trace of allocations at these times."""
    entries = [{"action": "alloc", "addr": 512 * i, "size": 1, "stream": 0, "time_us": t} for i, t in enumerate(times)]
    annotations = [{"name": n, "stage": s, "time_us": t, "device": device} for n, s, t in notes]
    blocks = [
        {"address": 512 * i, "size": 512, "requested_size": 1, "state": "active_allocated"} for i in range(len(times))
    ]
    segment = {"address": 0, "total_size": 512 * len(times), "stream": 0, "segment_type": "small", "blocks": blocks}
    raw = {"segments": [segment], "device_traces": [entries], "external_annotations": annotations}
    (profile,) = build([reader.from_dict(raw)]).devices
    return [(step.step, step.event) for step in profile.steps]


def span(name: str, start: int, end: int) -> list[tuple[str, str, int]]:
    return [(name, "START", start), (name, "END", end)]


def test_a_step_ends_with_its_optimizer_step() -> None:
    assert ends(list(range(10)), span(ADAM, 2, 3) + span(ADAM, 6, 7)) == [(1, 3), (2, 7)]


def test_the_last_of_several_optimizers_closes_the_step() -> None:
    notes = span(ADAM, 1, 2) + span(SGD, 3, 4) + span(ADAM, 6, 7) + span(SGD, 8, 9)
    assert ends(list(range(10)), notes) == [(1, 4), (2, 9)]


def test_an_optimizer_that_steps_less_often_does_not_close_steps() -> None:
    notes = span(ADAM, 1, 2) + span(SGD, 3, 4) + span(ADAM, 6, 7)
    assert ends(list(range(10)), notes) == [(1, 2), (2, 7)]


def test_without_an_optimizer_the_profilers_steps_count() -> None:
    notes = span("ProfilerStep#0", 0, 4) + span("ProfilerStep#1", 5, 8)
    assert ends(list(range(10)), notes) == [(1, 4), (2, 8)]


def test_the_step_is_the_processs_on_every_device() -> None:
    """An annotation carries the device that was current."""
    assert ends(list(range(10)), span(ADAM, 2, 3), device=1) == [(1, 3)]


def test_a_real_training_file_has_its_steps(shared: Path) -> None:
    snapshot = reader.load(shared / "data" / "snapshots" / "lm-full-step-adamw.pickle")
    device = snapshot.devices[0]
    (profile,) = build([snapshot]).devices
    optimizer = [a for a in snapshot.annotations if a.name.startswith("Optimizer.step") and a.stage == "END"]
    assert len(profile.steps) == len(optimizer) > 0
    for step, note in zip(profile.steps, optimizer, strict=True):
        assert device.trace.time_us[step.event] <= note.time_us < device.trace.time_us[step.event + 1]
        assert step.live_bytes == live_bytes(device)[step.event + 1]


def marks(*told: tuple[int, str]) -> list[Mark]:
    return [Mark(event=10 * index, step=step, phase=phase) for index, (step, phase) in enumerate(told)]


INNER = [(1, "forward"), (1, "backward"), (2, "forward"), (2, "backward")]  # taken for steps until an optimizer has one
SECOND = [(1, "forward"), (1, "backward"), (2, "backward"), (3, "forward"), (3, "backward"), (4, "backward")]


@pytest.mark.parametrize(
    ("told", "events"),
    [
        ([*INNER, (2, "optimizer"), (3, "forward"), (3, "backward"), (3, "optimizer"), (4, "forward")], (49, 79)),
        (SECOND, (29,)),
        ([(1, "backward"), (2, "backward"), (3, "backward")], (9, 19)),  # functions, no module: nothing else to go by
    ],
)
def test_inner_backwards_are_no_steps(told: list[tuple[int, str]], events: tuple[int, ...]) -> None:
    """MAML's; and the second derivative, which has no forward of its own."""
    assert recorded_boundaries(marks(*told), 10 * len(told), True).events == events
