"""Virtual runs of transformer jobs against recordings of such jobs on real GPUs: every allocation, to the byte."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Action, DeviceSnapshot
from oomdoc.snapshots.timeline import extent, live_bytes

JOB = Path(__file__).parent / "jobs" / "course_lm.py"


def events(device: DeviceSnapshot, *actions: Action) -> list[tuple[int, int]]:
    trace = device.trace
    pairs = zip(trace.action.tolist(), trace.size.tolist(), strict=True)
    return [(action, size) for action, size in pairs if action in actions]


@pytest.mark.parametrize(
    ("recording", "args", "frees_in_order"),
    [
        ("lm-fwd-150-complete", ("--context", "150"), True),
        ("lm-fwdbwd-100-complete", ("--context", "100", "--train"), True),
        # autocast drops its cached weights in the order of a C++ hash map, which nothing shows
        ("lm-fwd-200-amp-complete", ("--context", "200", "--autocast"), False),
        ("lm-fwdbwd-200-amp-complete", ("--context", "200", "--autocast", "--train"), False),
    ],
)
def test_the_virtual_run_is_the_real_one(
    shared: Path, tmp_path: Path, recording: str, args: tuple[str, ...], frees_in_order: bool
) -> None:
    result = run(RunSpec(script=str(JOB), args=args, run_dir=tmp_path, gpu="a100-80gb", steps=0, target_torch=(2, 9)))
    assert result.exit_status == 0
    [virtual] = reader.load(result.snapshots[0]).devices
    real = reader.load(shared / "data" / "snapshots" / f"{recording}.pickle").devices[0]
    assert events(virtual, Action.ALLOC) == events(real, Action.ALLOC)
    allocated, expected = extent(virtual), extent(real)
    assert (allocated.peak, allocated.final) == (expected.peak, expected.final)
    assert allocated.reserved_peak == expected.reserved_peak
    if frees_in_order:
        assert events(virtual, Action.ALLOC, Action.FREE_REQUESTED) == events(real, Action.ALLOC, Action.FREE_REQUESTED)


def test_a_full_step_of_a_large_lm_is_the_real_one(shared: Path, tmp_path: Path) -> None:
    """The recording holds one step of a job that had run before: 5,002 allocations, 65.4 GiB at its peak."""
    job = JOB.with_name("large_lm.py")
    result = run(RunSpec(script=str(job), run_dir=tmp_path, gpu="a100-80gb", steps=0))
    assert result.exit_status == 0
    snapshot = reader.load(result.snapshots[0])
    [virtual], real = (
        snapshot.devices,
        reader.load(shared / "data" / "snapshots" / "lm-full-step-adamw.pickle").devices[0],
    )
    assert snapshot.recording is not None
    marks = snapshot.recording.devices[0].marks
    after_first_step = next(b.event for a, b in pairwise(marks) if a.phase == "optimizer")
    kinds = (Action.ALLOC, Action.FREE_REQUESTED)
    ours, theirs = events(virtual, *kinds), events(real, *kinds)
    assert ours[-len(theirs) :] == theirs
    live, expected = live_bytes(virtual), extent(real)
    assert live[after_first_step:].max() == expected.peak
    assert live[-1] == expected.final


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recording", "args", "alloc_conf"),
    [
        ("lm-fwd-expandable", ("--context", "128", "--forward", "3"), "expandable_segments:True"),
        ("lm-infer-near-full", ("--graphs", "2"), None),
    ],
)
def test_passes_of_a_large_lm_are_the_real_ones(
    shared: Path, tmp_path: Path, recording: str, args: tuple[str, ...], alloc_conf: str | None
) -> None:
    """Recordings that begin before the last pass: its allocations, and what the whole job reserved within 0.2 %."""
    job = RunSpec(script=str(JOB.with_name("large_lm.py")), args=args, run_dir=tmp_path, gpu="a100-80gb", steps=0)
    result = run(replace(job, target_torch=(2, 9), alloc_conf=alloc_conf))
    [virtual] = reader.load(result.snapshots[0]).devices
    real = reader.load(shared / "data" / "snapshots" / f"{recording}.pickle").devices[0]
    ours, theirs = events(virtual, Action.ALLOC), events(real, Action.ALLOC)
    assert ours[-len(theirs) :] == theirs
    window = [event for event, action in enumerate(virtual.trace.action) if action == Action.ALLOC][-len(theirs)]
    assert live_bytes(virtual)[window:].max() == pytest.approx(extent(real).peak, rel=0.001)
    assert extent(virtual).reserved_peak == pytest.approx(extent(real).reserved_peak, rel=0.002)
