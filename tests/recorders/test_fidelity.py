"""Virtual runs of transformer jobs against recordings of such jobs on real GPUs: every allocation, to the byte."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Action, DeviceSnapshot
from oomdoc.snapshots.timeline import extent, live_bytes

JOBS = Path(__file__).parent / "jobs"


def events(device: DeviceSnapshot, *actions: Action) -> list[tuple[int, int]]:
    trace = device.trace
    pairs = zip(trace.action.tolist(), trace.size.tolist(), strict=True)
    return [(action, size) for action, size in pairs if action in actions]


@pytest.mark.parametrize(
    ("recording", "job", "frees_in_order"),
    [
        ("lm-peak-tiny-complete", "attention_peak.py", True),
        pytest.param("lm-fwd-150-complete", "course_lm.py --context 150", True, marks=pytest.mark.slow),
        pytest.param("lm-fwdbwd-100-complete", "course_lm.py --context 100 --train", True, marks=pytest.mark.slow),
        # autocast drops its cached weights in the order of a C++ hash map, which nothing shows
        pytest.param("lm-fwd-200-amp-complete", "course_lm.py --context 200 --autocast", False, marks=pytest.mark.slow),
        ("lm-fwdbwd-200-amp-complete", "course_lm.py --context 200 --autocast --train", False),
    ],
)
def test_the_virtual_run_is_the_real_one(
    shared: Path, tmp_path: Path, recording: str, job: str, frees_in_order: bool
) -> None:
    script, *args = job.split()
    result = run(
        RunSpec(
            script=str(JOBS / script), args=tuple(args), run_dir=tmp_path, gpu="a100-80gb", steps=0, target_torch=(2, 9)
        )
    )
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
    result = run(RunSpec(script=str(JOBS / "large_lm.py"), run_dir=tmp_path, gpu="a100-80gb", steps=0))
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
    ("recording", "job", "alloc_conf"),
    [
        ("lm-fwd-expandable", "large_lm.py --context 128 --forward 3", "expandable_segments:True"),
        ("lm-infer-near-full", "large_lm.py --graphs 2", None),
        ("lm-fwd-fp32-viz-page", "rotated_lm.py", None),
        ("lm-windows-user-metadata", "large_lm.py --size small --batch 32 --context 256 --own-loss 3", None),
        ("lm-bwd-ring-full", "large_lm.py --size large --batch 8 --context 128 --own-adamw 3", None),
    ],
)
def test_what_a_late_recording_holds_is_the_real_one(
    shared: Path, tmp_path: Path, recording: str, job: str, alloc_conf: str | None
) -> None:
    """Recordings that begin in the middle of their job: their allocations, and what the whole job reserved."""
    virtual, real = runs(shared, tmp_path, recording, job, alloc_conf)
    ours, theirs = events(virtual, Action.ALLOC), events(real, Action.ALLOC)
    assert ours[-len(theirs) :] == theirs
    assert peak_in_window(virtual, len(theirs)) == pytest.approx(extent(real).peak, rel=0.001)
    assert extent(virtual).reserved_peak == pytest.approx(extent(real).reserved_peak, rel=0.006)


@pytest.mark.slow
def test_compiled_training_peaks_as_recorded(shared: Path, tmp_path: Path) -> None:
    """Whose graphs broke where the job says so; which buffers inductor shares, and when it makes them, is its own."""
    job = "large_lm.py --size small --batch 1 --context 64 --vocab 50257 --own-adamw 3 --compile"
    virtual, real = runs(shared, tmp_path, "lm-compile-train", job)
    count = len(events(real, Action.ALLOC))
    assert peak_in_window(virtual, count) == pytest.approx(extent(real).peak, rel=0.001)


def runs(
    shared: Path, folder: Path, recording: str, job: str, alloc_conf: str | None = None
) -> tuple[DeviceSnapshot, DeviceSnapshot]:
    """The virtual run of a job, and the recording of the real one."""
    script, *args = job.split()
    spec = RunSpec(script=str(JOBS / script), args=tuple(args), run_dir=folder, gpu="a100-80gb", steps=0)
    result = run(replace(spec, target_torch=(2, 9), alloc_conf=alloc_conf))
    [virtual] = reader.load(result.snapshots[0]).devices
    [path] = (shared / "data" / "snapshots").glob(f"{recording}.*")
    return virtual, reader.load(path).devices[0]


def peak_in_window(virtual: DeviceSnapshot, allocations: int) -> int:
    """Peak from the `allocations`-th last allocation on."""
    window = [event for event, action in enumerate(virtual.trace.action) if action == Action.ALLOC][-allocations]
    return int(live_bytes(virtual)[window:].max())
