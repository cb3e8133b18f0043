"""`oomdoc analyze`: the diagnosis of recordings, and of logs."""

from typing import Annotated

import typer

from .format import Format
from .options import CapacityOption, FormatOption, GpuOption, OutputOption

EPILOG = """Examples:

[bold]oomdoc analyze snapshot.pickle[/bold]  what torch.cuda.memory._dump_snapshot wrote

[bold]oomdoc analyze .oomdoc/latest --format json[/bold]  a run directory, for a program

[bold]oomdoc analyze rank0.pickle rank1.pickle[/bold]  the ranks of one job

[bold]oomdoc analyze train.log[/bold]  what the out-of-memory messages of a log can tell; [bold]-[/bold] is stdin
"""


def analyze(
    recordings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SNAPSHOT|RUNDIR|LOG]...",
            help="Snapshots of one job, one per rank, or run directories; or text logs, `-` for stdin. "
            "Default: the latest run here.",
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
    is executed. A text log is searched for out-of-memory messages. Exit status 1 when the recording ends in an
    out-of-memory, or the log tells of one.
    """
    from .analysis import report_files

    if status := report_files(recordings or [], gpu, capacity, form, output):
        raise typer.Exit(status)
