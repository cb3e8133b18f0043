"""`python -m oomdoc.recorders.rank SPEC.json`: the process of one rank. Runs the script under a recorder.

Leaves `rankN.pickle` and `rankN.status.json` in the run directory: at the end, when enough steps are done, on out of
memory, on any other exception, on SIGTERM; a dump alone on SIGUSR1 and where `--dump` asks for one. Exits as the script
would have; 1 on out of memory; 2 where the recorder had to stop.
"""

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..errors import OomdocError
from . import channel
from .assumed import hint
from .dumping import Dumper
from .hooks import StopAfterSteps
from .launch import DEFAULT_STEPS, RunSpec
from .outcome import FAULT, Failure, Outcome, Terminated, ending_facts, exit_status_of, outcome_of
from .progress import Progress
from .recorder import Recorder
from .script import execute, user_traceback
from .seat import Seat
from .stuck import StuckSignals, die_of
from .summary import Summaries
from .triggers import Due, parse
from .uploading import faults_told, say
from .watch import Watch

if TYPE_CHECKING:
    from .largest_batch import LargestBatch

LOOK_SECONDS = 0.05  # between two looks at whether a dump or a word of progress is due
_DUMP_SIGNALS = (signal.SIGUSR1,) if hasattr(signal, "SIGUSR1") else ()


def main(argv: list[str]) -> int:
    spec = read_spec(Path(argv[1]))
    seat = Seat.of(spec)
    seat.take(spec.run_dir)
    try:
        with recorder_of(spec, seat) as recorder, _largest(spec) as largest, _apply(spec, recorder):
            outcome = Recording(spec, recorder, seat, largest).run()
            seat.leave(spec, outcome)
            with contextlib.suppress(SystemExit):
                atexit._run_exitfuncs()  # the script's own, while its GPU is still there
    except OomdocError as error:
        outcome = outcome_of(error, 0, oom_at_end=False)  # the command line says what it was
        seat.leave(spec, outcome)
    except Exception as fault:  # the script's own errors do not come here
        traceback.print_exc()
        message = f"a fault of oomdoc itself: {type(fault).__name__}: {fault}"
        outcome = Outcome(exit_status=FAULT, failure=Failure(message=message))
        seat.leave(spec, outcome)
    if spec.mode == "cuda":
        _die_as_the_script_would(outcome)
    return outcome.exit_status


def _die_as_the_script_would(outcome: Outcome) -> None:
    """Of the signal that ended it, so that whoever started us sees the status that it would have seen."""
    number = {143: signal.SIGTERM, 130: signal.SIGINT}.get(outcome.exit_status) if outcome.by_signal else None
    if number is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def read_spec(path: Path) -> RunSpec:
    raw = json.loads(path.read_text())
    raw["args"] = tuple(raw["args"])
    raw["target_torch"] = tuple(raw["target_torch"]) if raw.get("target_torch") else None
    raw["torchrun"] = tuple(raw.get("torchrun", ()))
    raw["run_dir"] = Path(raw["run_dir"]).resolve()
    raw["apply"] = Path(raw["apply"]).resolve() if raw["apply"] else None
    return RunSpec(**raw)


def recorder_of(spec: RunSpec, seat: Seat) -> AbstractContextManager[Recorder]:
    steps = None if spec.steps == 0 else spec.steps
    if spec.mode == "cuda":
        from .cuda import MAX_ENTRIES, cuda_recorder

        return cuda_recorder(
            steps=steps,
            rank=seat.rank,
            world_size=seat.world_size,
            stacks=spec.stacks,
            max_entries=spec.max_entries or MAX_ENTRIES,
        )
    from .virtual.recorder import virtual_recorder

    return virtual_recorder(spec, seat.rank, steps=DEFAULT_STEPS if spec.steps is None else steps)


def _largest(spec: RunSpec) -> "AbstractContextManager[LargestBatch | None]":
    if not spec.largest_batch:
        return nullcontext()
    from .largest_batch import installed

    return installed()


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
        say(note)
    for reason in applied.unapplied():
        say(f"not applied: {reason}")


class Recording:
    """The run of a script under a recorder: what is dumped when, and how it ended."""

    def __init__(self, spec: RunSpec, recorder: Recorder, seat: Seat, largest: "LargestBatch | None" = None) -> None:
        self.spec = spec
        self.largest = largest
        self.recorder = recorder
        self.seat = seat
        self.error: BaseException | None = None
        self.over = False
        self.dumper = Dumper(spec, recorder, seat.rank, self.facts)
        self.summaries = Summaries(spec, seat)
        self.due = Due(parse(spec.dump))
        self.next_look = 0.0
        self.progress = Progress(recorder, channel.Speaker(os.environ.pop(channel.VARIABLE, None)), seat.rank)
        self.watch = Watch.of(spec, recorder, self.progress)
        self.stuck = StuckSignals(self.act_for_main_thread, self.dumping)

    def run(self) -> Outcome:
        """Run the script, dump the snapshot at the moment it ends, and say how it ended."""
        hooks = self.recorder.hooks
        hooks.before_stop, hooks.on_step, hooks.on_change = self.finish, self.on_step, self.on_change
        if hasattr(self.recorder, "on_oom"):
            self.recorder.on_oom = self.on_oom
        pid = os.getpid()
        watching = self.stuck.watching(signal.SIGTERM, *_DUMP_SIGNALS) if self.spec.mode == "cuda" else nullcontext()
        with self._terminable(), self._dumping_on_request(), watching, self.progress.reporting():
            try:
                execute(self.spec.script, self.spec.args, module=self.spec.module)
            except BaseException as raised:
                self.error = raised
            if os.getpid() != pid:
                _leave_fork(self.error)
            hooks.on_step = hooks.on_change = None
            self.finish()
            if self.error is not None:
                _report(self.error)
        outcome = self.outcome()
        if self.error is not None:
            assumed = hint(self.error, self.recorder.assumed_reads())
            if assumed is not None and outcome.error is not None and not outcome.out_of_memory:
                say(assumed)
            self.error.__traceback__ = None
        return outcome

    def outcome(self) -> Outcome:
        oom_at_end = self.recorder.out_of_memory_at_end()
        return outcome_of(self.error, self.recorder.hooks.completed, oom_at_end=oom_at_end)

    def facts(self) -> dict[str, object]:
        """How the script ended, once it has: `out_of_memory`, whether it failed with one, not whether it caught any;
        and `ended` and `exit_status` where an error of the script's own cut the run short: it shows no more than the
        memory until then.
        """
        if not self.over:
            return {}
        facts = ending_facts(self.outcome(), self.error)
        if self.largest is not None:
            facts["largest_batch"] = self.largest.facts()
        return facts

    def finish(self) -> None:
        """The last dump: at the moment the script stops, before its frames let go of anything."""
        if self.over:
            return
        self.over = True
        with self.guarded():
            snapshot = self.dumper.dump(keep=lambda taken: self.summaries.keeps(taken, self.outcome()))
            if snapshot is not None:
                self.summaries.write(snapshot, self.outcome())

    def guarded(self) -> AbstractContextManager[None]:
        """A real job outlives a fault of ours and keeps its status; on the virtual GPU the recording is the job."""
        return faults_told() if self.spec.mode == "cuda" else nullcontext()

    def dumping(self) -> bool:
        return self.dumper.at_work or self.recorder.busy()

    def act_for_main_thread(self, number: int) -> None:
        """It is inside a C call and cannot: dump, and end the process if it was to end."""
        if number != signal.SIGTERM:
            with self.guarded():
                self.dumper.dump()
            return
        self.error = Terminated()
        self.finish()
        self.seat.leave(self.spec, self.outcome())
        die_of(number)

    def on_oom(self) -> None:
        self.seat.out_of_memory()
        with self.guarded():
            self.dumper.at_oom()

    def on_step(self, step: int) -> None:
        with self.guarded():
            if self.due.step(step):
                self.dumper.dump(f"rank{self.seat.rank}.step{step}.pickle")
            if self.watch is not None:
                self.watch.step(step)

    def on_change(self) -> None:
        """Some hundred times a step: most often too soon for anything to be due."""
        now = time.monotonic()
        if now < self.next_look and not self.due.by_request:
            return
        self.next_look = now + LOOK_SECONDS
        with self.guarded():
            self.progress.tick()
            hooks = self.recorder.hooks
            if not hooks.trains and self.due.request(hooks.requests):
                self.dumper.dump(f"rank{self.seat.rank}.request{hooks.requests}.pickle")
            if self.due.now():
                self.dumper.dump()

    @contextmanager
    def _terminable(self) -> Iterator[None]:
        """SIGTERM ends the script at the next moment when the recorder is not in the middle of an event or a dump."""
        pid = os.getpid()

        def again() -> None:
            threading.Timer(0.01, os.kill, (pid, signal.SIGTERM)).start()

        def terminate(number: int, frame: FrameType | None) -> None:
            self.stuck.handled(number)
            if os.getpid() != pid:  # a worker that the script forked: as if we were not there
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            if self.over:  # the end is near anyway, and what is being written is to be whole
                return
            if self.dumping():
                again()
                return
            raise Terminated

        def swallowed(unraisable: "sys.UnraisableHookArgs") -> None:
            """A handler may run within a `__del__` or a weak reference's callback, out of which no error comes."""
            if unraisable.exc_type is Terminated:
                again()
            else:
                hook(unraisable)

        previous, hook = signal.signal(signal.SIGTERM, terminate), sys.unraisablehook
        sys.unraisablehook = swallowed
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)
            if sys.unraisablehook is swallowed:
                sys.unraisablehook = hook

    @contextmanager
    def _dumping_on_request(self) -> Iterator[None]:
        """SIGUSR1; a handler that the script sets for it takes ours away."""
        if not hasattr(signal, "SIGUSR1") or self.spec.mode != "cuda":
            yield
            return
        pid = os.getpid()

        def dump(number: int, frame: FrameType | None) -> None:
            self.stuck.handled(number)
            with self.guarded():
                if os.getpid() == pid and self.dumper.dump() is not None:
                    say(f"wrote {self.dumper.path}")

        previous = signal.signal(signal.SIGUSR1, dump)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, previous)


def _report(error: BaseException) -> None:
    """What Python prints for an uncaught error, from the script's first frame on."""
    if isinstance(error, (StopAfterSteps, Terminated, OomdocError)):
        return
    if isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201  (as Python does)
        return
    error.__traceback__ = user_traceback(error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)


def _leave_fork(error: BaseException | None) -> None:
    """A child that the script forked came to the script's end: it goes without touching its parent's recording."""
    if error is not None:
        _report(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if error is None else exit_status_of(error) if isinstance(error, SystemExit) else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
