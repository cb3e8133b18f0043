"""`oomdoc plan`: which change makes the job fit, at what cost; with a script, each one is run."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..api.files import LATEST
from .format import Format
from .inputs import CONFIG_FILE
from .options import FormatOption, JobOptions, OutputOption, RunDirOption, ScriptArguments, with_job_options

if TYPE_CHECKING:
    from ..remedies.interface import Candidate, Constraints, Plan
    from ..reports.model import Report
    from .inputs import Command

EPILOG = """Examples:

[bold]oomdoc plan --gpu a100-40gb train.py --batch-size 64[/bold]  run it, then try each remedy on the virtual GPU

[bold]oomdoc plan[/bold]  for the latest run here

[bold]oomdoc plan --gpu rtx-4090 snapshot.pickle[/bold]  estimates for a recording: would it fit on that card?

[bold]oomdoc plan --keep-numerics --max-slowdown 1.3 --headroom 5% train.py[/bold]  under constraints

[bold]oomdoc plan --topology 4x8:h100-80gb:nvlink:ib400 snapshot.pickle[/bold]  on 32 GPUs
"""


@with_job_options
def plan(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[SCRIPT|RUNDIR|SNAPSHOT]", help="Default: the latest run here.", show_default=False),
    ] = None,
    args: ScriptArguments = None,
    *,
    job: JobOptions,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Run the best candidates on the virtual GPU to prove them.")
    ] = True,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Plan with these remedies alone; once for each.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Leave a remedy out; once for each.")
    ] = None,
    keep_numerics: Annotated[
        bool, typer.Option("--keep-numerics", help="Only what leaves the numbers as they are.")
    ] = False,
    max_slowdown: Annotated[
        float | None, typer.Option(metavar="FACTOR", min=0.01, help="At most this expected factor of the step time.")
    ] = None,
    headroom: Annotated[
        str | None, typer.Option(metavar="SIZE|%", help="What has to stay free on the card: 2GiB, 5%.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="NxG:GPU:LINK:NET",
            help="Where it is to run: 4x8:h100-80gb:nvlink:ib400. Explains where the time of its collectives goes.",
        ),
    ] = None,
    run_dir: RunDirOption = None,
    form: FormatOption = Format.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Rank the changes that would make the job fit, by what they cost.

    For a script, and for a run directory whose script is still there, the best candidates are run again with the
    change applied: their peak is then verified, not estimated. Writes oomdoc.yaml into the run directory. Exit status
    0 when a change fits (or nothing needs one), 1 when none does.
    """
    from .inputs import is_script, no_arguments
    from .launching import command_of, new_run_dir
    from .output import emit, script_output

    limits = _constraints(only, without, keep_numerics, max_slowdown, headroom, topology)
    target = target or str(LATEST)
    if is_script(target, job.module):
        command = command_of(target, args, _placed(job, topology))
        with script_output(form, output):
            report = planned_run(command, new_run_dir(command, run_dir), verify, limits)
    else:
        no_arguments(target, args)
        card = _placed(job, topology).gpu if topology is not None else job.gpu
        report = _of_recording(target, (card, job.capacity), verify, form, output, limits)
    emit(report, form, output)
    from ..remedies.planner import best

    if report.verdict.out_of_memory and not (report.plan and best(report.plan)):
        raise typer.Exit(1)


def _constraints(
    only: list[str] | None,
    without: list[str] | None,
    keep_numerics: bool,
    max_slowdown: float | None,
    headroom: str | None,
    topology: str | None,
) -> "Constraints":
    from ..remedies.interface import Constraints

    return Constraints(
        only=tuple(only or ()),
        without=tuple(without or ()),
        keep_numerics=keep_numerics,
        max_slowdown=max_slowdown,
        headroom=headroom,
        topology=topology,
    )


def _placed(job: JobOptions, topology: str | None) -> JobOptions:
    """The script's own options on the card and with the ranks that --topology names."""
    from ..remedies.costs.topology import parsed
    from ..remedies.interface import Job

    if topology is None:
        return job
    wanted = parsed(topology, Job(gpu=job.gpu, capacity_bytes=None, world_size=1))
    return replace(job, gpu=wanted.gpu, nproc_per_node=wanted.world_size // wanted.nnodes, nnodes=wanted.nnodes)


def applicable(plan: "Plan") -> "Candidate | None":
    """The best candidate that `run --apply` can put in force; some changes have to be made by hand."""
    from ..remedies.combining import can_be_applied
    from ..remedies.planner import best

    able = [each for each in plan.candidates if can_be_applied(each.estimate)]
    return best(replace(plan, candidates=tuple(able)))


def planned_run(command: "Command", directory: Path, verify: bool, limits: "Constraints | None" = None) -> "Report":
    """Record the script, then plan for it; exits with its own status where it failed of itself."""
    from .launching import record
    from .output import say
    from .run import own_status

    result = record(command, directory)
    if result.failure:
        say(result.failure)
    if not result.snapshots or (result.exit_status and not result.out_of_memory):
        say(f"the script ended with status {own_status(result.exit_status)}: there is nothing to plan for")
        raise typer.Exit(own_status(result.exit_status) or 4)
    return _planned(list(result.snapshots), str(directory), directory, command, verify, limits=limits)


def _of_recording(
    target: str,
    card: tuple[str | None, str | None],
    verify: bool,
    form: Format,
    output: Path | None,
    limits: "Constraints",
) -> "Report":
    from ..api.files import snapshot_files
    from .inputs import read_command
    from .output import script_output

    files = snapshot_files([target])
    directory = Path(target) if Path(target).is_dir() else None
    command = read_command(directory) if directory else None
    with script_output(form, output):
        return _planned(files, target, directory, command, verify and not any(card), card, limits)


def _planned(
    files: list[Path],
    where: str,
    directory: Path | None,
    command: "Command | None",
    verify: bool,
    card: tuple[str | None, str | None] = (None, None),
    limits: "Constraints | None" = None,
) -> "Report":
    from ..api.pipeline import diagnose_files, job_of
    from ..remedies.interface import Constraints
    from ..remedies.planner import plan as make
    from ..reports.build import build
    from .output import render, write_file
    from .verify import verifier, whole_profile, write_candidate

    diagnosis = diagnose_files(files, *card)
    job = job_of(diagnosis.profile, card[0], command.nnodes if command else 1)
    whole, check = None, None
    if verify and directory is not None and command is not None and can_run(command):
        failed = any(device.oom is not None for device in diagnosis.profile.devices)
        whole = whole_profile(command, directory) if failed else None
        check = verifier(command, directory)
    made = make(diagnosis.profile, job, check, whole=whole, limits=limits or Constraints())
    chosen = applicable(made)
    if directory is not None and chosen is not None:
        write_candidate(directory / CONFIG_FILE, chosen, job, command.script if command else None)
    report = build(diagnosis, path=where, plan=made, next_commands=_next(where, directory, made, command))
    if directory is not None:
        write_file(directory / "report.json", render(report, Format.JSON, None))
    return report


def can_run(command: "Command") -> bool:
    """The script is still there; on real cards a plan never starts it."""
    return command.virtual and (command.module or Path(command.script).is_file())


def _next(where: str, directory: Path | None, made: "Plan", command: "Command | None") -> tuple[str, ...]:
    from ..remedies.planner import best

    first, chosen = best(made), applicable(made)
    commands = []
    if first is not None:
        commands.append(shlex.join(["oomdoc", "explain", first.estimate.settings[0].name]))
    if chosen is not None and directory is not None:
        commands.append(shlex.join(["oomdoc", "fix", where]))
        if command is not None:
            commands.append(shell_line(replace(command, apply=str(directory / CONFIG_FILE))))
    return tuple(commands)


def shell_line(command: "Command") -> str:
    """The `oomdoc run` that makes this run again."""
    one_rank = command.rank if command.virtual and command.world_size > 1 and not command.others else None
    words = ["oomdoc", "run", *(["--virtual"] if command.virtual else [])]
    pairs: list[tuple[str, object, object]] = [
        ("--gpu", command.gpu, None),
        ("--capacity", command.capacity_bytes, None),
        ("--nproc-per-node", command.nproc_per_node, 1),
        ("--nnodes", command.nnodes, 1),
        ("--rank", one_rank, None),
        ("--steps", command.steps, None),
        ("--alloc-conf", command.alloc_conf, None),
        ("--cuda-context", command.context_bytes, None),
        ("--target-torch", command.target_torch, None),
        ("--apply", command.apply, None),
    ]
    for option, value, default in pairs:
        if value != default:
            words += [option, str(value)]
    words += ["-m"] if command.module else []
    return shlex.join([*words, command.script, *command.args])
