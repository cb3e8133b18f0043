"""Recordings of small scripts on a virtual GPU, many in one process: torch is imported once."""

import contextlib
import gc
import io
import os
from functools import cache
from pathlib import Path

import torch
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import virtual_session
from oomdoc.snapshots.model import Snapshot

JOBS = Path(__file__).resolve().parent / "jobs"
RECORDERS_JOBS = JOBS.parents[1] / "recorders" / "jobs"
# other kinds of jobs than the cases: those that attribution was tried with as it was written, and those kept apart
KINDS = JOBS.parents[1] / "benchmarks" / "jobs" / "kinds"
KINDS_APART = KINDS.with_name("kinds_apart")
OF_THE_RECORDERS = ["ddp", "fsdp1", "fsdp2_blocks"]  # sharded training as it should be
MIB = 1 << 20
_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}


@cache
def record(name: str, capacity_mib: int, outside_mib: int = 500) -> Snapshot:
    """The whole script NAME.py of a folder of jobs, or until it runs out of memory, with all it made still alive.

    A distributed one is rank 0 of 8. `outside_mib` of the card are not PyTorch's: the context, other processes.
    """
    target = GpuTarget(
        name="test-gpu",
        total_bytes=(capacity_mib + outside_mib) * MIB,
        context_bytes=outside_mib * MIB,
        sm_count=108,
        threads_per_sm=2048,
        compute_capability=(8, 0),
    )
    path = next(
        path for folder in (JOBS, RECORDERS_JOBS, KINDS, KINDS_APART) if (path := folder / f"{name}.py").is_file()
    )
    text = path.read_text()
    names: dict[str, object] = {"__name__": "__main__", "__file__": str(path)}  # kept: a dump comes before the exit
    gc.collect()  # tensors of an earlier script that sit in cycles
    before = dict(os.environ)
    os.environ.update(_RANK if "torch.distributed" in text else {})
    try:
        with virtual_session(target) as session, contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(compile(text, str(path), "exec"), names)
            except torch.OutOfMemoryError:
                return session.snapshot()  # while the exception keeps the frames that failed
            return session.snapshot()
    finally:
        os.environ.clear()
        os.environ.update(before)
