"""How a recorded script ended, and what its process leaves in the run directory."""

import json
from dataclasses import asdict, dataclass

import torch

from ..errors import OomdocError
from .errors import UnsupportedOperationError
from .hooks import StopAfterSteps

SCHEMA = "oomdoc.status/1"
FAULT = 4  # exit status: a fault of oomdoc itself


class Terminated(BaseException):
    """SIGTERM came: dump and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why the recording is not whole."""

    message: str
    operation: str | None = None
    file: str | None = None
    line: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Which process this is; times are Unix times."""

    rank: int = 0
    world_size: int = 1
    host: str = ""
    pid: int = 0
    started: float = 0.0
    ended: float | None = None
    restarts: int = 0
    oom_times: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`exit_status` as the shell sees it: the script's own; 1 on out of memory; 2 where the virtual GPU had to stop."""

    exit_status: int
    out_of_memory: bool = False
    steps: int = 0
    failure: Failure | None = None
    error: str | None = None  # "ValueError: ..." when the script itself failed
    by_signal: bool = False  # the status is that of a signal which ended the script
    running: bool = False  # what a process that is killed leaves

    def text(self, where: Whereabouts) -> str:
        """The content of rankN.status.json."""
        return json.dumps({"schema": SCHEMA, **asdict(self), **asdict(where)}, indent=1)


def outcome_of(error: BaseException | None, steps: int, *, oom_at_end: bool) -> Outcome:
    """Judge how the script ended. `oom_at_end`: the last thing the allocator said was out of memory."""
    if error is None or isinstance(error, StopAfterSteps):
        status = 0
    elif isinstance(error, SystemExit):
        status = exit_status_of(error)
    elif isinstance(error, KeyboardInterrupt):
        return Outcome(exit_status=130, steps=steps, by_signal=True)
    elif isinstance(error, Terminated):
        return Outcome(exit_status=143, steps=steps, by_signal=True)
    elif isinstance(ours := in_chain(error, OomdocError), OomdocError):
        return Outcome(exit_status=ours.exit_status, steps=steps, failure=_failure(ours))
    else:
        found = in_chain(error, torch.OutOfMemoryError) is not None
        return Outcome(exit_status=1, out_of_memory=found, steps=steps, error=f"{type(error).__name__}: {error}")
    if oom_at_end:  # the script caught it, and did not train on: that is no success
        return Outcome(exit_status=status or 1, out_of_memory=True, steps=steps)
    return Outcome(exit_status=status, steps=steps)


def ending_facts(outcome: Outcome, error: BaseException | None) -> dict[str, object]:
    """For the recording: whether it failed with an out-of-memory; what cut it short, where an error of its own did."""
    facts: dict[str, object] = {"out_of_memory": outcome.out_of_memory}
    whole = error is None or isinstance(error, StopAfterSteps)
    if not whole and not (isinstance(error, SystemExit) and exit_status_of(error) == 0):
        facts |= {"ended": type(error).__name__, "exit_status": outcome.exit_status}
    return facts


def exit_status_of(error: SystemExit) -> int:
    """What Python makes of sys.exit(x)."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def in_chain(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The error itself or the one it came from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, kind):
            return current
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return None


def _failure(error: OomdocError) -> Failure:
    if not isinstance(error, UnsupportedOperationError):
        return Failure(message=str(error))
    return Failure(
        message=error.what, operation=error.operation, file=error.file, line=error.line or None, hint=error.hint
    )
