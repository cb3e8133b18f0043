"""The options that several commands share, each declared once."""

from pathlib import Path
from typing import Annotated

import typer

from .format import Format
from .output import checked_output

# Everything behind the script belongs to the script.
SCRIPT_CONTEXT = {"allow_interspersed_args": False}


FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="How the report is written; `json` is a stable contract.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", metavar="FILE", help="Write the report to FILE instead of stdout.", callback=checked_output
    ),
]

GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", help="The card to run on or to judge against, such as h100-80gb."),
]
CapacityOption = Annotated[
    str | None,
    typer.Option("--capacity", metavar="SIZE", help="Another capacity than the card's own, such as 24GiB."),
]
VirtualOption = Annotated[
    bool | None,
    typer.Option(
        "--virtual/--real",
        help="On the virtual GPU (nothing is computed), or on real ones. Default: real where there is one.",
        show_default=False,
    ),
]
ModuleOption = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in `python -m`.")]
NprocOption = Annotated[
    int, typer.Option("--nproc-per-node", metavar="N", min=1, help="Processes per node; one GPU each.")
]
NnodesOption = Annotated[int, typer.Option("--nnodes", metavar="N", min=1, help="Nodes.")]
RankOption = Annotated[
    int, typer.Option("--rank", metavar="N", min=0, help="Which rank the virtual GPU runs; the others are played.")
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", metavar="N", min=1, help="Stop the script after N optimizer steps.")
]
AllocConfOption = Annotated[
    str | None,
    typer.Option("--alloc-conf", metavar="CONF", help="Allocator settings, as PYTORCH_ALLOC_CONF takes them."),
]
ApplyOption = Annotated[
    Path | None, typer.Option("--apply", metavar="FILE", help="Apply the remedies of this oomdoc.yaml to the script.")
]
RunDirOption = Annotated[
    Path | None,
    typer.Option("-o", "--run-dir", metavar="DIR", help="Where the recording goes. Default: .oomdoc/SCRIPT-TIME."),
]
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script untouched.", show_default=False)
]
