"""`oomdoc fit`: the largest value of an argument with which a script fits on a card."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import OomdocError
from .inputs import Command
from .options import JobOptions, OutputOption, ScriptArguments, with_job_options

if TYPE_CHECKING:
    from ..recorders.launch import RunResult
    from ..remedies.largest import Probe, Search
    from ..reports.fit import FitRow
    from .varying import Varied

STEPS = 3
LOG_FILE = "output.log"
EPILOG = """Examples:

[bold]oomdoc fit --gpu a100-40gb train.py --vary '--batch-size={}' 1..512[/bold]  the largest batch

[bold]oomdoc fit --gpu a100-40gb,h100-80gb --vary 'BATCH={}' 8..256:8 train.py[/bold]  an environment variable

[bold]oomdoc fit --format json --vary '--seq-len {}' 512,1024,2048,4096 train.py --fp8[/bold]  of these four lengths
"""


class FitFormat(str, Enum):
    TERMINAL = "terminal"
    JSON = "json"


@dataclass
class Trial:
    """Runs the script with one value after the other on one card, and keeps the recording of the largest that fits."""

    command: Command
    varied: "Varied"
    directory: Path
    trained: bool = False  # some value took an optimizer step
    best: int = -1
    largest_batch: "dict[str, object] | None" = None

    def run(self, value: int) -> "Probe":
        from .launching import record
        from .output import note

        command = replace(self.command, args=self.varied.arguments(self.command.args, value))
        folder = self.directory / str(value)
        folder.mkdir(parents=True, exist_ok=True)
        where = f"on {command.gpu}" if command.gpu else "here"
        where += f", {command.world_size} ranks" if command.world_size > 1 else ""
        text = self.varied.text(value)
        with _environment(self.varied.environment(value)):
            result = record(command, folder, what=f"trying {text} {where}", log=folder / LOG_FILE)
        probe = self._judge(value, result)
        note(f"{text} {where}: {_said(probe)}")
        return probe

    def _judge(self, value: int, result: "RunResult") -> "Probe":
        from ..api.pipeline import profile_files
        from ..remedies.largest import Outcome, Probe
        from .verify import error_of, peaks_of

        failed = error_of(result)
        if failed is None and not result.snapshots:
            failed = "nothing was recorded"
        if failed is not None:
            failed += _last_line(result.run_dir / LOG_FILE)
            return Probe(value=value, outcome=Outcome.FAILED, steps=result.steps, detail=failed)
        profile = profile_files(result.snapshots)
        allocated, reserved = peaks_of(profile)
        room = _room(profile)
        caught = any(device.caught is not None for device in profile.devices)
        outcome = Outcome.FITS
        detail: str | None = None
        if result.out_of_memory or caught:
            outcome = Outcome.OUT_OF_MEMORY
            detail = None if result.out_of_memory else "the script caught an out-of-memory and went on"
        elif not profile.devices:
            outcome, detail = Outcome.FAILED, "the script did not use the GPU"
        elif (self.trained and result.steps == 0) or (0 < result.steps < min(2, self.command.steps or STEPS)):
            steps = f"{result.steps} step" if result.steps else "no step"
            outcome, detail = Outcome.FAILED, f"{steps} was taken, which says nothing of a steady state"
        fits = outcome is Outcome.FITS
        if fits:
            self._keep(value, profile.recording.facts if profile.recording else {})
        self.trained = self.trained or result.steps > 0
        if not fits or value != self.best:
            for path in result.snapshots:
                path.unlink(missing_ok=True)
        return Probe(
            value=value,
            outcome=outcome,
            allocated_bytes=allocated if fits else None,
            reserved_bytes=reserved if fits else None,
            room_bytes=room,
            steps=result.steps,
            detail=detail,
        )

    def _keep(self, value: int, facts: object) -> None:
        """The recording of the largest value that fits stays, for `oomdoc analyze`."""
        if value < self.best:
            return
        for path in (self.directory / str(self.best)).glob("rank*.pickle"):
            path.unlink()
        self.best = value
        known = facts.get("largest_batch") if isinstance(facts, dict) else None
        self.largest_batch = known if isinstance(known, dict) else None


@with_job_options
def fit(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script, or with -m a module.")],
    args: ScriptArguments = None,
    *,
    vary: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--vary",
            metavar="TEMPLATE RANGE",
            help="The argument with {} for its value ('--batch-size={}'), or an environment variable in upper case "
            "('BATCH={}'); then 1..512, 8..512:8 or 8,16,48. May also stand behind the script.",
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="N,...", help="Processes per node, several: a row of the table for each."),
    ] = None,
    job: JobOptions,
    form: Annotated[
        FitFormat, typer.Option("--format", "-f", help="How it is written; `json` is a stable contract.")
    ] = FitFormat.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Find the largest value of an argument with which a script fits on a card.

    Each value tried is a run of three optimizer steps (or --steps), in which every second batch is the largest that
    the data can make; few are needed, as memory nearly grows in a line. --gpu takes several names. A value counts
    as fitting when the run came to its end with no out-of-memory, caught ones included. Exit status 1 when not even
    the smallest value fits everywhere.
    """
    from ..reports.fit import Fit
    from .launching import command_of, new_run_dir
    from .output import note
    from .varying import parse

    varied, others = parse(vary, args or [])
    rows = []
    peaks: dict[int, dict[int, int]] = {}
    directory: Path | None = None
    for card in (job.gpu or "").split(","):
        for count in _counts(ranks, job.nproc_per_node):
            ours = replace(job, gpu=card.strip() or None, nproc_per_node=count, steps=job.steps or STEPS)
            command = replace(command_of(script, others, ours), largest_batch=True)
            directory = directory or new_run_dir(command, kind="fit")
            folder = directory / f"{command.gpu or 'cuda'}-x{command.world_size}"
            row = _row(Trial(command=command, varied=varied, directory=folder), peaks.setdefault(count, {}))
            rows.append(row)
    values = varied.values
    found = Fit(
        script=script,
        args=others,
        template=varied.template,
        low=values[0],
        high=values[-1],
        steps=job.steps or STEPS,
        rows=tuple(rows),
    )
    _emit(found, form, output)
    if directory is not None:
        note(f"the recordings of the largest values are in {directory}")
    if not found.fits:
        raise typer.Exit(1)


def _row(trial: Trial, peaks: dict[int, int]) -> "FitRow":
    """One search; `peaks` are those of the same job on other cards, to which its own are added."""
    from ..remedies.largest import Outcome, largest
    from ..reports.fit import FitRow, notes_of

    search = largest(trial.varied.values, trial.run, peaks)
    if all(probe.outcome is Outcome.FAILED for probe in search.probes):
        raise OomdocError(_all_failed(search))
    peaks.update({p.value: p.allocated_bytes for p in search.probes if p.allocated_bytes is not None})
    notes = notes_of(search, trial.largest_batch, trial.varied.template)
    return FitRow(
        gpu=trial.command.gpu,
        world_size=trial.command.world_size,
        search=search,
        largest_batch=trial.largest_batch,
        notes=notes,
    )


def _all_failed(search: "Search") -> str:
    tried = ", ".join(str(probe.value) for probe in search.probes)
    return f"the script failed with every value tried ({tried}), not for want of memory: {search.probes[0].detail}"


def _counts(ranks: str | None, default: int) -> list[int]:
    if ranks is None:
        return [default]
    words = [word.strip() for word in ranks.split(",")]
    if not all(word.isdigit() and int(word) for word in words):
        raise OomdocError(f"--ranks takes numbers of processes, such as 1,2,8; not {ranks!r}")
    return [int(word) for word in words]


def _room(profile: object) -> int | None:
    from ..api.pipeline import smallest_room
    from ..diagnosers.interface import MemoryProfile

    assert isinstance(profile, MemoryProfile)
    return smallest_room(profile)


def _said(probe: "Probe") -> str:
    from ..diagnosers.text import size

    peak = f", peak {size(probe.allocated_bytes)}" if probe.allocated_bytes is not None else ""
    detail = f" ({probe.detail})" if probe.detail else ""
    return f"{probe.outcome.value}{peak}{detail}"


def _last_line(log: Path) -> str:
    """What the script said last, as a rule its error."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:200]}" if last else ""


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _emit(found: object, form: FitFormat, output: Path | None) -> None:
    import sys

    from ..reports import fit as reports
    from .output import colors, has_utf8, note, put, width, write_file

    assert isinstance(found, reports.Fit)
    stream = sys.stdout if output is None else None
    if form is FitFormat.JSON:
        text = reports.json(found)
    else:
        text = reports.terminal(found, width=width(stream), color=colors(stream), ascii_only=not has_utf8(stream))
    if output is None:
        put(text)
    else:
        write_file(output, text)
        note(f"wrote {output}")
