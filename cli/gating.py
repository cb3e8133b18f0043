"""What `oomdoc gate` does with its jobs: run them side by side, judge each, write the baseline, say what came out."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..api.files import snapshot_files
from ..errors import OomdocError, UnreadableInputError
from .format import Format
from .inputs import Command, write_command
from .options import JobOptions
from .verify import LOG_FILE

if TYPE_CHECKING:
    from ..diagnosers.interface import DeviceProfile, MemoryProfile
    from ..gates.interface import Gate, Measured
    from ..gates.settings import JobSettings
    from ..recorders.launch import RunResult
    from ..remedies.interface import Candidate
    from ..reports.model import GateRun, Report

EXCEEDED, NO_BASELINE, NOT_JUDGED = 1, 2, 3
_LOG_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The jobs to judge. `whole`: they are all of the file, so that a new baseline holds no others."""

    jobs: tuple["JobSettings", ...]
    baseline: Path
    whole: bool = False
    workers: int | None = None
    from_file: bool = False


def run_gate(asked: Asked, *, update: bool, form: Format, output: Path | None) -> int:
    """-> the exit status of the command."""
    from ..reports.all_formats import GATE_RENDERERS
    from ..reports.model import GateRun, Judged

    if form.value not in GATE_RENDERERS and len(asked.jobs) > 1:
        raise OomdocError(f"--format {form.value} draws one job: name it with --job")
    compared = any(job.limits.growth is not None for job in asked.jobs)
    known = _baseline(asked, update=update, needed=compared)
    judged: list[Judged] = []
    measured: dict[str, Measured] = {}
    for job, found in _measured(asked, form, output):
        if isinstance(found, OomdocError):
            judged.append(Judged(name=job.name, failure=str(found)))
            continue
        report, now = _judge(job, found, known.get(job.name), asked.baseline, update=update)
        judged.append(Judged(name=job.name, report=report))
        if not report.verdict.out_of_memory:
            measured[job.name] = now
    run = GateRun(jobs=tuple(judged))
    if update:
        _write(asked, known, measured)
    _emit(replace(run, next_commands=_next(run, asked, update)), asked, form, output)
    return _status(run)


def _status(run: "GateRun") -> int:
    """What was exceeded comes before what could not be told."""
    gates = [job.gate for job in run.jobs if job.gate is not None]
    names = {check.name for gate in gates for check in gate.checks if not check.passed}
    if names - {"baseline"}:
        return EXCEEDED
    if len(gates) < len(run.jobs):
        return NOT_JUDGED
    return NO_BASELINE if names else 0


# ---- measuring


def _measured(
    asked: Asked, form: Format, output: Path | None
) -> Iterator[tuple["JobSettings", "Sequence[Path] | OomdocError"]]:
    """The recordings of each job, in their order; scripts run side by side."""
    commands = [_command(job) for job in asked.jobs]  # every mistake is told before anything runs
    if not asked.from_file:
        yield asked.jobs[0], _alone(asked.jobs[0], commands[0], form, output)
        return
    from .launching import unhide
    from .output import note

    for command in commands:
        if command is not None:
            unhide(command)
    with ThreadPoolExecutor(max_workers=max(1, min(asked.workers or _cores(), len(commands)))) as pool:
        waiting = [pool.submit(_in_background(job, command)) for job, command in zip(asked.jobs, commands, strict=True)]
        for number, (job, future) in enumerate(zip(asked.jobs, waiting, strict=True), 1):
            found = future.result()
            note(f"{number} of {len(waiting)}: {job.name}")
            yield job, found


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _command(job: "JobSettings") -> Command | None:
    """How the script is run; None where there are recordings."""
    from ..configs.defaults import DEFAULT_GPU
    from .launching import command_of

    if job.script is None:
        return None
    options = JobOptions(
        gpu=job.gpu or (DEFAULT_GPU if job.virtual else None),
        virtual=job.virtual,
        capacity=job.capacity,
        module=job.module,
        nproc_per_node=job.nproc_per_node,
        nnodes=job.nnodes,
        rank=job.rank,
        steps=job.steps,
        alloc_conf=job.alloc_conf,
        cuda_context=job.cuda_context,
        target_torch=job.target_torch,
    )
    return command_of(job.script, job.args, options, Path(job.apply) if job.apply else None)


def _in_background(job: "JobSettings", command: Command | None) -> Callable[[], "Sequence[Path] | OomdocError"]:
    def measure() -> "Sequence[Path] | OomdocError":
        try:
            if command is None:
                return snapshot_files(list(job.snapshots))
            from ..recorders.launch import run
            from .launching import spec_of

            folder = _folder(job, command)
            log = folder / LOG_FILE
            return _recorded(run(spec_of(command, folder), log=log), log)
        except OomdocError as error:
            return error

    return measure


def _alone(
    job: "JobSettings", command: Command | None, form: Format, output: Path | None
) -> "Sequence[Path] | OomdocError":
    """One job, whose script has the terminal."""
    from .launching import record
    from .output import script_output

    if command is None:
        return snapshot_files(list(job.snapshots))
    with script_output(form, output):
        return _recorded(record(command, _folder(job, command)), None)


def folder_of(name: str) -> Path:
    """Where a job of the gate is recorded: the same place each time."""
    from ..api.files import RUNS

    return RUNS / "gate" / (re.sub(r"[^\w.-]+", "-", name).strip("-.")[:80] or "job")


def _folder(job: "JobSettings", command: Command) -> Path:
    from .launching import make_runs

    make_runs()
    folder = folder_of(job.name)
    folder.mkdir(parents=True, exist_ok=True)
    write_command(folder, command)
    return folder


def _recorded(result: "RunResult", log: Path | None) -> "Sequence[Path] | OomdocError":
    """Raises UnreadableInputError where the script failed of itself: its memory is not known."""
    from .output import say
    from .run import own_status

    if result.snapshots and (not result.exit_status or result.out_of_memory):
        return list(result.snapshots)
    told = " ".join((result.failure or "").split())
    reason = f"the script ended with status {own_status(result.exit_status)} of itself: the gate cannot judge it"
    if log is not None:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        say("\n".join([f"the end of {log}:", *tail]))
    elif told:
        say(told)
    return UnreadableInputError(f"{reason}{f' ({told})' if told else ''}")


# ---- judging


def _judge(
    job: "JobSettings", files: "Sequence[Path]", before: "Measured | None", baseline: Path, *, update: bool
) -> tuple["Report", "Measured"]:
    from ..api.pipeline import diagnose_files
    from ..diagnosers.source import stable_path
    from ..gates.judge import judge
    from ..gates.measure import measure, worst
    from ..reports.build import build
    from .changes import since

    card = (None, None) if job.script else (job.gpu, job.capacity)
    diagnosis = diagnose_files(list(files), *card)
    profile = diagnosis.profile
    device = worst(profile, job.limits.metric)
    recording = profile.recording
    now = measure(device, recording.world_size if recording else max(1, len({each.rank for each in profile.devices})))
    gate = judge(job.name, job.limits, device, now, now if update and device.oom is None else before)
    if not gate.passed:
        gate = replace(gate, remedy=_remedy(gate, profile, device))
    if not gate.passed and before is not None:
        files_named = {stable_path(frame.filename) for frame in device.snapshot.stacks.frames}
        gate = replace(gate, changes=since(baseline, files_named))
    return build(diagnosis, path=job.script or " ".join(job.snapshots), gate=gate), now


def _remedy(gate: "Gate", profile: "MemoryProfile", device: "DeviceProfile") -> "Candidate | None":
    """The cheapest change that is predicted to bring the peak below every limit."""
    from ..api.pipeline import job_of
    from ..remedies.planner import best, plan

    if {check.name for check in gate.checks if not check.passed} == {"baseline"}:
        return None
    job = job_of(profile)
    limits = [each for each in (gate.limit_bytes, job.capacity_bytes) if each is not None]
    return best(plan(device, replace(job, capacity_bytes=min(limits, default=None))))


# ---- the baseline


def _baseline(asked: Asked, *, update: bool, needed: bool) -> dict[str, "Measured"]:
    """What is committed. One that cannot be read is no matter where all of it is about to be written anew."""
    from ..gates.baseline import read

    if not asked.baseline.exists() or not (needed or update or asked.from_file):
        return {}
    try:
        return read(asked.baseline)
    except UnreadableInputError:
        if update and asked.whole:
            return {}
        raise


def _write(asked: Asked, known: dict[str, "Measured"], measured: dict[str, "Measured"]) -> None:
    """Jobs that could not be measured keep what they had; those that the file no longer has go."""
    from ..gates.baseline import write
    from .output import note, say

    if not measured:
        say(f"nothing could be measured: {asked.baseline} is as it was")
        return
    names = {job.name for job in asked.jobs}
    kept = {name: each for name, each in known.items() if name in names or not asked.whole}
    write(asked.baseline, {**kept, **measured})
    note(f"wrote {asked.baseline}: {len(measured)} {'job' if len(measured) == 1 else 'jobs'}")


# ---- saying


def _next(run: "GateRun", asked: Asked, update: bool) -> tuple[str, ...]:
    failed = [job for job in run.jobs if job.gate is not None and not job.gate.passed]
    if not failed:
        return ()
    first = next(job for job in asked.jobs if job.name == failed[0].name)
    where = str(folder_of(first.name)) if first.script else " ".join(first.snapshots)
    commands = [shlex.join(["oomdoc", "analyze", where]), shlex.join(["oomdoc", "plan", where])]
    checks = [check for job in failed if job.gate is not None for check in job.gate.checks]
    compared = any(check.name in ("growth", "baseline") and not check.passed for check in checks)
    if compared and not update and asked.from_file:
        commands.append("oomdoc gate --update  # if the growth is meant; commit the file")
    return tuple(commands)


def _emit(run: "GateRun", asked: Asked, form: Format, output: Path | None) -> None:
    """One job of a command line is a report, for machines too; a file's jobs are a list of them."""
    from ..reports.all_formats import GATE_RENDERERS
    from .output import emit, emit_gate

    alone = run.jobs[0] if len(run.jobs) == 1 else None
    as_report = form is Format.JSON and not asked.from_file
    if form.value in GATE_RENDERERS and not as_report:
        emit_gate(run, form, output)
    elif alone is not None and alone.report is not None:
        emit(alone.report, form, output)
    elif alone is not None:
        raise UnreadableInputError(alone.failure or "the job could not be judged")
