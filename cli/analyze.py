"""`oomdoc analyze`: the diagnosis of recordings."""

from typing import Annotated

import typer

from .inputs import LATEST, snapshot_files
from .options import CapacityOption, Format, FormatOption, GpuOption, OutputOption

EPILOG = """Examples:

[bold]oomdoc analyze snapshot.pickle[/bold]  what torch.cuda.memory._dump_snapshot wrote

[bold]oomdoc analyze .oomdoc/latest --format json[/bold]  a run directory, for a program

[bold]oomdoc analyze rank0.pickle rank1.pickle[/bold]  the ranks of one job
"""


def analyze(
    recordings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SNAPSHOT|RUNDIR]...",
            help="Snapshots of one job, one per rank, or run directories. Default: the latest run here.",
            show_default=False,
        ),
    ] = None,
    gpu: GpuOption = None,
    capacity: CapacityOption = None,
    form: FormatOption = Format.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Say what holds the memory, by cause and by line of your code.

    Reads what PyTorch's `torch.cuda.memory._dump_snapshot` writes, and what `oomdoc run` records; nothing in the file
    is executed. Exit status 1 when the recording ends in an out-of-memory.
    """
    from ..reports.build import build
    from .output import emit
    from .pipeline import diagnose_files

    targets = recordings or [str(LATEST)]
    files = snapshot_files(targets)
    diagnosis = diagnose_files(files, gpu, capacity)
    report = build(diagnosis, path=" ".join(targets), next_commands=_next(targets, diagnosis))
    emit(report, form, output)
    if report.verdict.out_of_memory:
        raise typer.Exit(1)


def _next(targets: list[str], diagnosis: object) -> tuple[str, ...]:
    import shlex

    from ..diagnosers.interface import Diagnosis

    assert isinstance(diagnosis, Diagnosis)
    commands = []
    if diagnosis.findings:
        commands.append(f"oomdoc explain {diagnosis.findings[0].code}")
    commands.append(shlex.join(["oomdoc", "plan", *targets[:1]]))
    return tuple(commands)
