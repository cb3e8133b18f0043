"""Scripts that follow the jobs of public recordings, against those recordings: allocations in order and size, peaks."""

import sys
import tempfile
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Action, DeviceSnapshot
from oomdoc.snapshots.timeline import extent, live_bytes
from page import MIB, made, shared, table

JOBS = Path(__file__).resolve().parents[2] / "recorders" / "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    recording: str
    script: str
    args: str = ""
    alloc_conf: str | None = None
    late: bool = False  # the recording began in the middle of its job, and ended with it
    compiled: bool = False  # inductor's own plan is not followed: which buffers, and in which order


RUNS = (
    Job(recording="lm-fwd-150-complete", script="course_lm.py", args="--context 150"),
    Job(recording="lm-fwd-200-amp-complete", script="course_lm.py", args="--context 200 --autocast"),
    Job(recording="lm-fwdbwd-100-complete", script="course_lm.py", args="--context 100 --train"),
    Job(recording="lm-fwdbwd-200-amp-complete", script="course_lm.py", args="--context 200 --autocast --train"),
    Job(recording="lm-peak-tiny-complete", script="attention_peak.py"),
    Job(recording="lm-fwd-fp32-viz-page", script="rotated_lm.py", late=True),
    Job(
        recording="lm-windows-user-metadata",
        script="large_lm.py",
        args="--size small --batch 32 --context 256 --own-loss 3",
        late=True,
    ),
    Job(
        recording="lm-bwd-ring-full",
        script="large_lm.py",
        args="--size large --batch 8 --context 128 --own-adamw 3",
        late=True,
    ),
    Job(
        recording="lm-compile-train",
        script="large_lm.py",
        args="--size small --batch 1 --context 64 --vocab 50257 --own-adamw 3 --compile",
        late=True,
        compiled=True,
    ),
    Job(recording="lm-full-step-adamw", script="large_lm.py", late=True),
    Job(recording="lm-infer-near-full", script="large_lm.py", args="--graphs 2", late=True),
    Job(
        recording="lm-fwd-expandable",
        script="large_lm.py",
        args="--context 128 --forward 3",
        alloc_conf="expandable_segments:True",
        late=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes; `matched` is the share of the recorded allocations that the virtual run makes, in order and size."""

    recording: str
    allocations: int
    matched: float
    peak: int
    real_peak: int
    reserved: int
    real_reserved: int
    compiled: bool


def rows() -> list[Row]:
    return [_row(job) for job in RUNS]


def _row(job: Job) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        spec = RunSpec(
            script=str(JOBS / job.script),
            args=tuple(job.args.split()),
            run_dir=Path(folder),
            gpu="a100-80gb",
            steps=0,
            target_torch=(2, 9),
            alloc_conf=job.alloc_conf,
        )
        virtual = reader.load(run(spec).snapshots[0])
    [recording] = (shared() / "data" / "snapshots").glob(f"{job.recording}.*")
    real = reader.load(recording).devices[0]
    [ours] = virtual.devices
    expected = extent(real)
    recorded, every = _allocations(real), _allocations(ours)
    made_here = every[-len(recorded) :] if job.late else every
    begin = made_here[0][0]
    sizes, real_sizes = [size for _, size in made_here], [size for _, size in recorded]
    row = Row(
        job.recording,
        len(recorded),
        matched(real_sizes, sizes),
        int(live_bytes(ours)[begin:].max()),
        int(expected.peak),
        int(extent(ours).reserved_peak),
        int(expected.reserved_peak),
        job.compiled,
    )
    print(f"{job.recording}: {100 * row.matched:.2f} % of {row.allocations}", file=sys.stderr, flush=True)  # noqa: T201
    return row


def _allocations(device: DeviceSnapshot) -> list[tuple[int, int]]:
    """(event, requested bytes) of each allocation."""
    trace = device.trace
    events = np.flatnonzero(trace.action == Action.ALLOC)
    return list(zip(events.tolist(), trace.size[events].tolist(), strict=True))


def matched(recorded: list[int], ours: list[int]) -> float:
    """Share of `recorded` in its longest common run with `ours` (in order)."""
    if recorded == ours:
        return 1.0
    blocks = SequenceMatcher(None, recorded, ours, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / len(recorded)


def summary(found: list[Row]) -> dict[str, float]:
    eager = [row for row in found if not row.compiled]
    return {
        "runs": len(found),
        "matched": min(row.matched for row in eager),
        "peak": max(abs(row.peak / row.real_peak - 1) for row in found),
        "reserved": max(abs(row.reserved / row.real_reserved - 1) for row in eager),
        "matched when compiled": min(row.matched for row in found if row.compiled),
    }


def section(found: list[Row]) -> str:
    head = ("recording", "allocations", "matched", "peak allocated MiB", "real", "peak reserved MiB", "real")
    lines = [
        (
            row.recording,
            row.allocations,
            f"{100 * row.matched:.2f} %",
            *(f"{each / MIB:.2f}" for each in (row.peak, row.real_peak)),
            *(f"{each / MIB:.0f}" for each in (row.reserved, row.real_reserved)),
        )
        for row in found
    ]
    return f"{made()}\n\n{table(head, lines)}"
