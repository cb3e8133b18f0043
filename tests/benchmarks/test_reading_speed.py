"""Reading a snapshot against a bare `pickle.load` (collector on, as other tools do it), as ratios within one run.

Processor seconds of the whole process and its children, so that a busy machine does not decide; resident memory is
that of the largest process.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs resource usage of children")]

MEASURE = """
import json, resource, sys
{statement}
own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
print(json.dumps([seconds, max(own.ru_maxrss, children.ru_maxrss)]))
"""
BARE = "import pickle; content = pickle.load(open(sys.argv[1], 'rb'))"
OURS = "from oomdoc.snapshots import reader; content = reader.load(sys.argv[1])"
EXTENT = OURS + "\nfrom oomdoc.snapshots import timeline; timeline.extent(content.devices[0])"


def measured(statement: str, path: Path) -> tuple[float, int]:
    """(processor seconds, resident KiB), the better of two runs."""
    runs = []
    for _ in range(2):
        for kept in path.parent.glob(".*.columns"):
            kept.unlink()
        code = MEASURE.format(statement=statement)
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    return min(run[0] for run in runs), min(run[1] for run in runs)


def made(shared: Path, folder: Path, events: int, depth: int) -> Path:
    path = folder / f"{events}-{depth}.pickle"
    tool = shared / "tools" / "make_snapshot.py"
    size = ["--events", str(events), "--depth", str(depth)]
    subprocess.run([sys.executable, str(tool), *size, "-o", str(path)], check=True, capture_output=True)
    return path


@pytest.mark.parametrize(
    ("events", "depth", "time_limit", "memory_limit"), [(1_000_000, 40, 0.85, 1.3), (200_000, 20, 1.8, 1.3)]
)
def test_reading_against_a_bare_load(
    shared: Path, tmp_path: Path, events: int, depth: int, time_limit: float, memory_limit: float
) -> None:
    path = made(shared, tmp_path, events, depth)
    bare_seconds, bare_kib = measured(BARE, path)
    our_seconds, our_kib = measured(EXTENT, path)
    time, memory = our_seconds / bare_seconds, our_kib / bare_kib
    sys.stdout.write(
        f"\nread {events} events, depth {depth}: {our_seconds:.2f} s = {time:.2f} x bare load, memory {memory:.2f} x\n"
    )
    assert time <= time_limit
    assert memory <= memory_limit


def test_the_second_command_reads_kept_columns(shared: Path, tmp_path: Path) -> None:
    path = made(shared, tmp_path, 300_000, 40)
    bare_seconds, _ = measured(BARE, path)
    subprocess.run([sys.executable, "-c", MEASURE.format(statement=OURS), str(path)], check=True, capture_output=True)
    assert list(tmp_path.glob(".*.columns"))
    code = MEASURE.format(statement=EXTENT)
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    seconds = json.loads(done.stdout)[0]
    sys.stdout.write(
        f"\nread kept columns of 300000 events: {seconds:.2f} s = {seconds / bare_seconds:.2f} x bare load\n"
    )
    assert seconds <= 0.5 * bare_seconds
