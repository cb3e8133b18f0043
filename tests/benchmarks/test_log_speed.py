"""Searching 100 MB of log, against `grep` for the same words, as a ratio of processor seconds within one run.

The log is like a training log: every line has a rank, numbers and the word "memory", and some failures stand in it.
"""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("grep") is None, reason="compares with grep")]

WORDS = (
    "out.of.memory|Killed|_ALLOC_FAILED|STATUS_NOT_INITIALIZED|OOM when|calloc|DataLoader worker|(exit|return )code"
    "|oom.kill|shared memory|memory summary|cudaErrorMemoryAllocation"
)
FAILURE = (
    "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 MiB. GPU {rank} has a total "
    "capacity of 8.00 GiB of which 0 bytes is free. Of the allocated memory 7.13 GiB is allocated by PyTorch, and "
    "127.09 MiB is reserved by PyTorch but unallocated.\n"
)
OURS = """
import sys
from oomdoc.diagnosers.from_log import read
print(len(read([('log', open(sys.argv[1], 'rb'))]).devices))
"""
EMPTY = OURS.replace("open(sys.argv[1], 'rb')", "open('/dev/null', 'rb')")


def made(path: Path, size: int) -> Path:
    line = "[rank{}]: 2026-01-02 10:{:02d}:01 INFO trainer.py:{} step={} loss=0.{} lr=1.0e-4 memory: {} epoch 1 of 3\n"
    facts = ((step % 8, step % 60, step % 500, step, step * 7919 % 10_000, step) for step in range(50_000))
    piece = "".join(line.format(*each) for each in facts)
    with path.open("w") as file:
        while file.tell() < size:
            file.write(piece)
        for rank in range(8):
            file.write(FAILURE.format(rank=rank))
    return path


def seconds(command: list[str]) -> tuple[float, str]:
    """Processor seconds of a command, the better of three runs, and what it printed."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found), done.stdout.strip()


def test_a_log_of_100_megabytes_against_grep(tmp_path: Path) -> None:
    path = made(tmp_path / "train.log", 100_000_000)
    grep, lines = seconds(["grep", "-cE", WORDS, str(path)])
    ours, devices = seconds([sys.executable, "-c", OURS, str(path)])
    start, _ = seconds([sys.executable, "-c", EMPTY, str(path)])
    assert (lines, devices) == ("8", "8")
    search = ours - start
    sys.stdout.write(
        f"\ngrep {grep:.3f} s, oomdoc {search:.3f} s after {start:.3f} s to start: {search / grep:.1f} x\n"
    )
