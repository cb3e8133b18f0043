"""Step windows from oomdoc's marks, from the profiler's ranges and from the optimizer's."""

from pathlib import Path

import numpy as np
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import DeviceRecording, Mark, Recording, Snapshot
from oomdoc.snapshots.steps import StepWindow, moment, steps
from oomdoc.snapshots.timeline import live_bytes


def with_annotations(times: list[int], notes: list[tuple[str, str, int]], device: int = 0) -> Snapshot:
    entries = [{"action": "alloc", "addr": 512 * i, "size": 1, "stream": 0, "time_us": t} for i, t in enumerate(times)]
    annotations = [{"name": n, "stage": s, "time_us": t, "device": device} for n, s, t in notes]
    return reader.from_dict({"segments": [], "device_traces": [entries], "external_annotations": annotations})


def windows(snapshot: Snapshot) -> list[tuple[int, int, int]]:
    return [(w.step, w.start, w.end) for w in steps(snapshot, snapshot.devices[0])]


def span(name: str, start: int, end: int) -> list[tuple[str, str, int]]:
    return [(name, "START", start), (name, "END", end)]


ADAM, SGD = "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step"


def test_a_step_ends_with_its_optimizer_step() -> None:
    snapshot = with_annotations(list(range(10)), span(ADAM, 2, 3) + span(ADAM, 6, 7))
    assert windows(snapshot) == [(1, 0, 4), (2, 4, 8)]


def test_the_last_of_several_optimizers_closes_the_step() -> None:
    notes = span(ADAM, 1, 2) + span(SGD, 3, 4) + span(ADAM, 6, 7) + span(SGD, 8, 9)
    assert windows(with_annotations(list(range(10)), notes)) == [(1, 0, 5), (2, 5, 10)]


def test_an_optimizer_that_steps_less_often_does_not_close_steps() -> None:
    notes = span(ADAM, 1, 2) + span(SGD, 3, 4) + span(ADAM, 6, 7)
    assert windows(with_annotations(list(range(10)), notes)) == [(1, 0, 3), (2, 3, 8)]


def test_profiler_steps_come_first() -> None:
    notes = span("ProfilerStep#0", 0, 4) + span(ADAM, 2, 3) + span("ProfilerStep#1", 5, 8)
    assert windows(with_annotations(list(range(10)), notes)) == [(1, 1, 5), (2, 6, 9)]


def test_nothing_is_told_without_times_or_for_another_device() -> None:
    untimed = reader.from_dict({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1}]]})
    assert steps(untimed, untimed.devices[0]) == ()
    assert windows(with_annotations([1, 2, 3], span(ADAM, 1, 2), device=1)) == []


def test_marks_win_and_setup_is_no_step() -> None:
    marks = (Mark(event=0, step=0, phase="setup"), Mark(event=2, step=1, phase="forward"),
             Mark(event=4, step=1, phase="backward"), Mark(event=6, step=2, phase="forward"))  # fmt: skip
    plain = with_annotations(list(range(9)), span(ADAM, 1, 2))
    blank = np.full(9, -1)
    device = DeviceRecording(
        category=blank.astype(np.int8), module=blank.astype(np.int32), estimated=np.zeros(9, bool), marks=marks
    )
    recording = Recording(
        schema="oomdoc.recording/1", kind="virtual", argv=(), versions={}, gpu=None, capacity_bytes=None,
        outside_bytes=None, rank=0, world_size=1, categories=(), modules=(), devices={0: device},
    )  # fmt: skip
    snapshot = Snapshot(devices=plain.devices, stacks=plain.stacks, annotations=plain.annotations, recording=recording)
    assert steps(snapshot, snapshot.devices[0]) == (
        StepWindow(step=1, start=2, end=6),
        StepWindow(step=2, start=6, end=9),
    )
    at = [moment(snapshot, snapshot.devices[0], event) for event in (-1, 0, 3, 4, 8)]
    assert at == [(None, "setup"), (None, "setup"), (1, "forward"), (1, "backward"), (2, "forward")]


def test_a_real_training_file_has_its_steps(shared: Path) -> None:
    snapshot = reader.load(shared / "data" / "snapshots" / "lm-full-step-adamw.pickle")
    device = snapshot.devices[0]
    found = steps(snapshot, device)
    optimizer = [a for a in snapshot.annotations if a.name.startswith("Optimizer.step") and a.stage == "END"]
    assert len(found) == len(optimizer) > 0
    for window, note in zip(found, optimizer, strict=True):
        assert device.trace.time_us[window.end - 1] <= note.time_us < device.trace.time_us[window.end]
    live = live_bytes(device)
    # steady state: the same bytes at the end of each step after the first
    ends = {int(live[window.end]) for window in found[1:]}
    assert len(ends) <= 1 or max(ends) - min(ends) < 0.01 * max(ends)
