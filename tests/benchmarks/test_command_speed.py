"""The whole `oomdoc` process against a bare `pickle.load` of the same file, as ratios within one run.

Processor seconds of the process and its children; memory is the largest resident set of any of them. Each figure is
the better of several runs, the first of a file's: columns that an earlier one kept are removed.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="needs resource usage of children")]

# A process of its own, so that the usage of its children is that of one command.
MEASURE = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
BARE = [sys.executable, "-c", "import pickle, sys; content = pickle.load(open(sys.argv[1], 'rb'))"]
ANALYZE = [sys.executable, "-m", "oomdoc", "analyze"]
START_SECONDS = 0.35


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As installed: pip compiles a package, a checkout may be told not to keep what it compiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


def measured(command: list[str], path: Path | None = None, runs: int = 3) -> tuple[float, int]:
    """(processor seconds, resident KiB) of `command`, the better of `runs`."""
    found = []
    for _ in range(runs):
        for kept in path.parent.glob(".*.columns") if path else ():
            kept.unlink()
        line = [sys.executable, "-c", MEASURE, *command, *([str(path)] if path else [])]
        found.append(json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout))
    return min(run[0] for run in found), min(run[1] for run in found)


@pytest.mark.parametrize(("events", "depth", "time_limit"), [(1_000_000, 40, 0.75), (200_000, 20, 1.5)])
def test_analyze_against_a_bare_load(shared: Path, tmp_path: Path, events: int, depth: int, time_limit: float) -> None:
    """Start, reading, diagnosis and report together. A tenth is for what a busy machine adds."""
    path = tmp_path / "made.pickle"
    maker = [sys.executable, str(shared / "tools" / "make_snapshot.py"), "--events", str(events), "--depth", str(depth)]
    subprocess.run([*maker, "-o", str(path)], check=True, capture_output=True)
    bare_seconds, bare_kib = measured(BARE, path)
    our_seconds, our_kib = measured(ANALYZE, path)
    time, memory = our_seconds / bare_seconds, our_kib / bare_kib
    sys.stdout.write(
        f"\nanalyze {events} events, depth {depth}: {our_seconds:.2f} s = {time:.2f} x a load (wanted {time_limit}), "
        f"memory {memory:.2f} x\n"
    )
    assert time <= 1.1 * time_limit
    assert memory <= 1.3


def test_start(shared: Path) -> None:
    """Help, and a file of 70 KB, beside what their own dependencies take to import."""
    small = shared / "data" / "snapshots" / "lm-peak-tiny-complete.pickle"
    needed, _ = measured([sys.executable, "-c", "import numpy, rich.console, rich.table, rich.text, yaml"], runs=5)
    for name, command in (("help", [sys.executable, "-m", "oomdoc", "--help"]), ("70 KB", [*ANALYZE, str(small)])):
        seconds, _ = measured(command, runs=5)
        sys.stdout.write(
            f"\nstart, {name}: {seconds:.2f} s (wanted {START_SECONDS}) = {seconds / needed:.2f} x its dependencies\n"
        )
        assert seconds <= 2.5 * needed
