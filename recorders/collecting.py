"""What the ranks of a run left in its directory, and how each of them ended."""

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnosers.text import size
from . import host_memory

if TYPE_CHECKING:
    from .launch import RunSpec
    from .overseer import Overseer

NEAR_LIMIT = 0.9  # of a host's memory limit: a process killed from there on was killed for it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """`exit_status` is the child's own, negative for a signal. `failure`: why the run could not be recorded whole.

    `ended`: sentences on ranks that did not come to their end: killed, or without a word.
    """

    run_dir: Path
    exit_status: int
    snapshots: tuple[Path, ...]  # rank0.pickle, ...
    out_of_memory: bool
    failure: str | None
    steps: int = 0  # optimizer steps that were recorded
    ended: tuple[str, ...] = ()
    first_out_of_memory: int | None = None  # the rank that ran out of memory first


def collect(spec: "RunSpec", exit_status: int, overseer: "Overseer | None" = None) -> RunResult:
    """What the ranks left in the run directory."""
    paths = sorted(spec.run_dir.glob("rank*.status.json"), key=rank_of)
    if spec.in_place:
        from .placement import placement

        placed = placement()
        paths = [path for path in paths if placed is None or rank_of(path) == placed.rank]
    statuses = [read_status(path) for path in paths]
    failures = [sentence(each["failure"]) for each in statuses if each.get("failure")]
    ended = _ended(statuses, exit_status, overseer, own=not spec.elastic and not spec.others)
    if not statuses:
        failures = [f"the recorder was ended from outside (status {exit_status}) before it could write anything"]
    failed = [each for each in statuses if each.get("out_of_memory")]
    if exit_status == 0:  # torchrun reports its own status; an OOM is never a success
        exit_status = next((each["exit_status"] for each in statuses if each.get("exit_status")), 0)
    first = min(failed, key=lambda each: min(each.get("oom_times") or [float("inf")]), default=None)
    return RunResult(
        run_dir=spec.run_dir,
        exit_status=exit_status or (1 if failed else 0),
        snapshots=tuple(sorted(spec.run_dir.glob("rank*.pickle"), key=rank_of)),
        out_of_memory=bool(failed),
        failure=failures[0] if failures else None,
        steps=max((int(each.get("steps", 0)) for each in statuses), default=0),
        ended=ended,
        first_out_of_memory=None if first is None else int(first.get("rank") or 0),
    )


def rank_of(path: Path) -> int:
    digits = path.name.removeprefix("rank").partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def read_status(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"failure": {"message": f"{path} cannot be read"}}
    return loaded if isinstance(loaded, dict) else {}


def sentence(failure: Mapping[str, Any]) -> str:
    where = f" at {failure['file']}:{failure['line']}" if failure.get("file") else ""
    hint = f"\n{failure['hint']}" if failure.get("hint") else ""
    return f"{failure.get('message', 'the run could not be recorded')}{where}{hint}"


def _ended(
    statuses: Sequence[Mapping[str, Any]], exit_status: int, overseer: "Overseer | None", *, own: bool
) -> tuple[str, ...]:
    """One sentence for each rank that left without writing how it ended, and for a bus error that one reports.

    `own`: the status is the rank's, not that of a launcher in between.
    """
    gone = [each for each in statuses if each.get("running")]
    how = f"ended with status {exit_status} and left no word: by os._exit, or nothing can be written where it ran"
    killed = not own or not 0 <= exit_status < 128
    told = [f"{_who(each, len(statuses))} {_killed(each, exit_status, overseer) if killed else how}" for each in gone]
    bus = [each for each in statuses if "Bus error" in str(each.get("error"))]
    told += [f"{_who(each, len(statuses))} lost a process to a bus error: {_shm()}" for each in bus]
    return tuple(told)


def _who(status: Mapping[str, Any], of: int) -> str:
    return f"rank {status.get('rank', 0)}" if of > 1 else "the script"


def _killed(status: Mapping[str, Any], exit_status: int, overseer: "Overseer | None") -> str:
    """By which signal is known for our own child; the launcher in between keeps that of its ranks to itself."""
    number = -exit_status if exit_status < 0 else exit_status - 128 if exit_status > 128 else 0
    known = {-each.value: each.name for each in signal.Signals}
    by = f"was killed by {known[-number]}" if -number in known else "was killed"
    if number == signal.SIGBUS:
        return f"{by}: {_shm()}"
    if number not in (0, signal.SIGKILL, 1):
        return by
    return f"{by}: {_host_reason(int(status.get('pid') or 0), overseer)}"


def _host_reason(pid: int, overseer: "Overseer | None") -> str:
    """Host memory or not. The GPU's memory never ends a process with a signal: it raises an error in the script."""
    if overseer is None:
        return "what it held is not known"
    peak, limit = overseer.peak_rss.get(pid), overseer.host_limit
    of_limit = "" if limit is None else f" of {size(limit)}"
    held = "" if peak is None else f" (it held {size(peak)} of host memory{of_limit})"
    if overseer.kernel_kills():
        return f"the kernel's out-of-memory killer ended it: the host ran out of memory, not the GPU{held}"
    if peak is not None and limit is not None and peak >= NEAR_LIMIT * limit:
        return f"probably for host memory, not the GPU's{held}"
    return f"from outside, and not for memory as far as can be seen{held}"


def _shm() -> str:
    room = host_memory.shm()
    whole = "" if room is None else f" of {size(room[0])}"
    return f"/dev/shm{whole} was probably full, through which DataLoader workers pass batches: take fewer"
