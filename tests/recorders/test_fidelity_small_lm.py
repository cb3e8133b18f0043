"""A virtual run of a small LM against four recordings of such a job on a real GPU: every allocation, to the byte."""

from pathlib import Path

import pytest
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Action, DeviceSnapshot
from oomdoc.snapshots.timeline import extent

JOB = Path(__file__).parent / "jobs" / "small_lm.py"


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
    result = run(RunSpec(script=str(JOB), args=args, run_dir=tmp_path, gpu="a100-80gb", steps=0))
    assert result.exit_status == 0
    [virtual] = reader.load(result.snapshots[0]).devices
    real = reader.load(shared / "data" / "snapshots" / f"{recording}.pickle").devices[0]
    assert events(virtual, Action.ALLOC) == events(real, Action.ALLOC)
    allocated, expected = extent(virtual), extent(real)
    assert (allocated.peak, allocated.final) == (expected.peak, expected.final)
    assert allocated.reserved_peak == expected.reserved_peak
    if frees_in_order:
        assert events(virtual, Action.ALLOC, Action.FREE_REQUESTED) == events(real, Action.ALLOC, Action.FREE_REQUESTED)
