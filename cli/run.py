"""`oomdoc run`: record a script, then say what happened."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import OomdocError
from .format import Format
from .in_place import tell_of_rank
from .options import (
    ApplyOption,
    FormatOption,
    JobOptions,
    OutputOption,
    RunTargetOption,
    ScriptArguments,
    with_job_options,
)
from .real_options import RealOptions

if TYPE_CHECKING:
    from ..diagnosers.interface import Diagnosis
    from ..recorders.launch import RunResult
    from ..reports.model import Verdict

EPILOG = """Examples:

[bold]oomdoc run --gpu a100-40gb train.py --batch-size 64[/bold]  your script, unmodified, on a card you do not have

[bold]oomdoc run --gpu h100-80gb --nproc-per-node 8 --nnodes 2 train_fsdp.py[/bold]  as rank 0 of 16

[bold]oomdoc run --apply oomdoc.yaml train.py[/bold]  with the remedies that `plan` wrote

[bold]oomdoc run --steps 3 -m mypackage.train[/bold]  stop after three optimizer steps

[bold]oomdoc run --nproc-per-node 8 train_ddp.py[/bold]  on 8 real GPUs, started by torchrun

[bold]oomdoc run --warn-at 92% --on-warn ./page.sh --metrics oomdoc.prom train.py[/bold]  warn before it is too late

[bold]srun oomdoc run train_ddp.py[/bold]  as one rank of a job that srun, mpirun or torchrun --no-python started
"""


@with_job_options
def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script, or with -m a module.")],
    args: ScriptArguments = None,
    *,
    job: JobOptions,
    real: RealOptions,
    apply: ApplyOption = None,
    run_dir: RunTargetOption = None,
    form: FormatOption = Format.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Run a script, record its GPU memory, and say what holds it.

    Options before SCRIPT are oomdoc's; everything behind it is the script's, untouched. Without a GPU, or with
    --virtual, the script runs on a virtual one: nothing is computed, every allocation is as on the card named.
    On real GPUs torchrun starts the processes, and each leaves a snapshot and a summary.
    Exit status 1 when the script ran out of memory, else the script's own.
    """
    from .launching import command_of, new_run_dir, placed_by_launcher, record
    from .output import script_output

    command = command_of(script, args, job, apply)
    real.check(job, command.virtual)
    extra = real.spec()
    placed = placed_by_launcher(command, extra["torchrun"])
    url = run_dir if run_dir is not None and "://" in run_dir else None
    directory = new_run_dir(command, None if run_dir is None or url else Path(run_dir), placed)
    with script_output(form, output):
        result = record(command, directory, real=real, spec={**extra, "in_place": placed is not None, "upload": url})
    if placed is None:
        _report(directory, result, form, output)
    else:
        tell_of_rank(placed, directory, result)
    if result.out_of_memory:
        raise typer.Exit(1)
    if result.exit_status:
        raise typer.Exit(own_status(result.exit_status))


def own_status(status: int) -> int:
    """The shell's convention for a process that a signal ended: 128 + signal."""
    return 128 - status if status < 0 else status


def _report(directory: Path, result: "RunResult", form: Format, output: Path | None) -> None:
    from .output import emit, render, say, write_file

    if result.failure:
        say(result.failure)
    for sentence in result.ended:
        say(sentence)
    if not result.snapshots:
        say(f"nothing was recorded: the script ended with status {own_status(result.exit_status)}")
        return
    from ..api.pipeline import diagnose_files
    from ..reports.build import build
    from .rank_files import cards_in, chosen, ranks_in

    ranks = ranks_in(directory)
    diagnosis = diagnose_files(chosen([Path(path) for path in result.snapshots], ranks))
    report = build(diagnosis, path=str(directory), next_commands=_next(directory, diagnosis, result), ranks=ranks)
    report = replace(report, cards=cards_in(directory))
    status = own_status(result.exit_status)
    if not diagnosis.profile.devices:
        report = replace(report, verdict=_unused(report.verdict, status))
        say(_without_gpu(status))
    elif status and not result.out_of_memory:
        say(f"the script ended with status {status}; what follows is the memory until then")
    try:
        write_file(directory / "report.json", render(report, Format.JSON, None))
    except OomdocError as error:  # a full disk: the status stays the script's
        say(str(error))
    if diagnosis.profile.devices or form is not Format.TERMINAL or output is not None:
        emit(report, form, output)


def _without_gpu(status: int) -> str:
    if status:
        return f"the script ended with status {status} before it used the GPU; its own error is above"
    return "the script ended without using the GPU: there is no memory to report"


def _unused(verdict: "Verdict", status: int) -> "Verdict":
    """The verdict on a script that never came to the GPU, for readers who do not see the script's own output."""
    if not status:
        return replace(verdict, summary="The script did not use the GPU.")
    summary = f"The script ended with status {status} before it used the GPU."
    return replace(verdict, ended=f"status {status}", summary=summary)


def _next(directory: Path, diagnosis: "Diagnosis", result: "RunResult") -> tuple[str, ...]:
    """A plan is for a job whose memory is known: it ran to its end, or out of memory."""
    if not diagnosis.profile.devices:
        return ()
    plan = shlex.join(["oomdoc", "plan", str(directory)])
    explain = [f"oomdoc explain {finding.code}" for finding in diagnosis.findings[:1]]
    if result.out_of_memory:
        return (plan, *explain)
    return tuple(explain) if result.exit_status else (*explain, plan)
