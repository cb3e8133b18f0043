"""`python -m oomdoc.recorders.rank SPEC.json`: the process of one rank. Runs the script under a recorder.

Leaves `rankN.pickle` and `rankN.status.json` in the run directory: at the end, when enough steps are done, on out of
memory, on any other exception, on SIGTERM. Exits with the script's own status; 1 on out of memory; 2 where the
recorder had to stop.
"""

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from ..errors import OomdocError
from ..snapshots import writer
from ..snapshots.model import Snapshot
from .launch import DEFAULT_STEPS, RunSpec
from .outcome import FAULT, Failure, Outcome, Terminated, exit_status_of, outcome_of
from .progress import Progress
from .recorder import Recorder
from .script import execute, user_traceback

MOST_PLACES = 3  # named where the script read assumed values, the latest first


def main(argv: list[str]) -> int:
    spec = read_spec(Path(argv[1]))
    rank = int(os.environ.get("RANK", spec.rank))
    try:
        with recorder_of(spec, rank) as recorder, _apply(spec, recorder):
            outcome = record(spec, recorder, rank)
            outcome.write(spec.run_dir / f"rank{rank}.status.json")
            with contextlib.suppress(SystemExit):
                atexit._run_exitfuncs()  # the script's own, while its GPU is still there
    except OomdocError as error:
        outcome = outcome_of(error, 0, oom_at_end=False)  # the command line says what it was
        outcome.write(spec.run_dir / f"rank{rank}.status.json")
    except Exception as fault:  # the script's own errors do not come here
        traceback.print_exc()
        message = f"a fault of oomdoc itself: {type(fault).__name__}: {fault}"
        outcome = Outcome(exit_status=FAULT, failure=Failure(message=message))
        outcome.write(spec.run_dir / f"rank{rank}.status.json")
    return outcome.exit_status


def _say(text: str) -> None:
    print(f"oomdoc: {text}", file=sys.stderr)  # noqa: T201  (the child's own stderr)


def read_spec(path: Path) -> RunSpec:
    raw = json.loads(path.read_text())
    raw["args"] = tuple(raw["args"])
    raw["target_torch"] = tuple(raw["target_torch"]) if raw["target_torch"] else None
    raw["run_dir"] = Path(raw["run_dir"]).resolve()
    raw["apply"] = Path(raw["apply"]).resolve() if raw["apply"] else None
    return RunSpec(**raw)


def recorder_of(spec: RunSpec, rank: int) -> AbstractContextManager[Recorder]:
    steps = None if spec.steps == 0 else spec.steps
    if spec.mode == "cuda":
        from .cuda import cuda_recorder

        return cuda_recorder(steps=steps)
    from .virtual.recorder import virtual_recorder

    return virtual_recorder(spec, rank, steps=DEFAULT_STEPS if spec.steps is None else steps)


@contextmanager
def _apply(spec: RunSpec, recorder: Recorder) -> Iterator[None]:
    """The remedies of an oomdoc.yaml, put in force before the script starts."""
    if spec.apply is None:
        yield
        return
    from ..remedies import config_file
    from ..remedies.runtime.install import install

    config = config_file.read(spec.apply)
    with install(config.remedies, world_size=spec.world_size, device_type="cuda") as applied:
        yield
    for note in applied.notes:
        _say(note)
    for reason in applied.unapplied():
        _say(f"not applied: {reason}")


def record(spec: RunSpec, recorder: Recorder, rank: int) -> Outcome:
    """Run the script, dump the snapshot at the moment it ends, and say how it ended."""
    path = spec.run_dir / f"rank{rank}.pickle"
    dumped = False
    error: BaseException | None = None

    def dump() -> None:
        nonlocal dumped
        if not dumped:
            dumped = True
            writer.dump(_with_ending(recorder.snapshot((spec.script, *spec.args)), recorder, error), path)

    recorder.hooks.before_stop = dump
    pid = os.getpid()
    with _terminable(recorder), Progress.inherited(recorder):
        try:
            execute(spec.script, spec.args, module=spec.module)
        except BaseException as raised:
            error = raised
        if os.getpid() != pid:
            _leave_fork(error)
        dump()
        if error is not None:
            _report(error)
    oom_at_end = recorder.out_of_memory_at_end()
    outcome = outcome_of(error, recorder.hooks.completed, oom_at_end=oom_at_end)
    if outcome.error is not None and not outcome.out_of_memory:
        _say_what_was_assumed(recorder.assumed_reads())
    if error is not None:
        error.__traceback__ = None
    return outcome


def _with_ending(snapshot: Snapshot, recorder: Recorder, error: BaseException | None) -> Snapshot:
    """The snapshot, with the fact `out_of_memory`: whether the script failed with one, not whether it caught any; and
    the facts `ended` and `exit_status` where an error of the script's own cut the run short: it shows no more than the
    memory until then.
    """
    from .hooks import StopAfterSteps

    if snapshot.recording is None:
        return snapshot
    outcome = outcome_of(error, recorder.hooks.completed, oom_at_end=recorder.out_of_memory_at_end())
    facts = {**snapshot.recording.facts, "out_of_memory": outcome.out_of_memory}
    whole = error is None or isinstance(error, StopAfterSteps)
    if not whole and not (isinstance(error, SystemExit) and exit_status_of(error) == 0):
        facts |= {"ended": type(error).__name__, "exit_status": outcome.exit_status}
    return replace(snapshot, recording=replace(snapshot.recording, facts=facts))


def _report(error: BaseException) -> None:
    """What Python prints for an uncaught error, from the script's first frame on."""
    from .hooks import StopAfterSteps

    if isinstance(error, (StopAfterSteps, Terminated, OomdocError)):
        return
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201  (as Python does)
        return
    error.__traceback__ = user_traceback(error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)


def _say_what_was_assumed(reads: Sequence[tuple[str, int]]) -> None:
    """An error of the script's own may follow from a value that a real GPU would have computed."""
    if not reads:
        return
    places = [f"{_short(file)}:{line}" for file, line in reversed(reads)]
    more = f" and {len(places) - MOST_PLACES} more places" if len(places) > MOST_PLACES else ""
    where = ", ".join(places[:MOST_PLACES]) + more
    _say(f"values read from the GPU were assumed at {where}: the error may come from that")


def _short(file: str) -> str:
    """Relative to the working directory where the file is below it."""
    relative = os.path.relpath(file)
    return file if relative.startswith(os.pardir) else relative


def _leave_fork(error: BaseException | None) -> None:
    """A child that the script forked came to the script's end: it goes without touching its parent's recording."""
    if error is not None:
        _report(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if error is None else exit_status_of(error) if isinstance(error, SystemExit) else 1)


@contextmanager
def _terminable(recorder: Recorder) -> Iterator[None]:
    """SIGTERM ends the script at the next moment when the recorder is not in the middle of an event."""

    def terminate(number: int, frame: FrameType | None) -> None:
        if recorder.busy():
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM)).start()
            return
        raise Terminated

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
