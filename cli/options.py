"""The options that several commands share, each declared once."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from .format import Format, format_of
from .output import Talk, checked_output
from .real_options import RealOptions

# Everything behind the script belongs to the script.
SCRIPT_CONTEXT = {"allow_interspersed_args": False}


def _format(context: typer.Context, form: Format) -> Format:
    """Without `--format`, the name of `--output` tells it."""
    source = context.get_parameter_source("form")
    if source is None or source.name.startswith("DEFAULT"):
        return format_of(context.params.get("output"))
    return form


def _cards(incomplete: str) -> list[str]:
    """For the shell's completion."""
    from ..configs.loader import gpus

    return [name for name in gpus() if name.startswith(incomplete)]


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help=f"How the report is written: {', '.join(each.value for each in Format)}. `json` is a stable contract. "
        "Default: what the name of --output says, else terminal.",
        callback=_format,
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write the report to FILE instead of stdout; report.html is a page with charts.",
        callback=checked_output,
        is_eager=True,  # before --format, which goes by its name
    ),
]

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr; what is wrong is still said.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Every row of the terminal report's tables.")]

GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="The card to run on or to judge against, such as h100-80gb.",
        autocompletion=_cards,
    ),
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
    int | None,
    typer.Option(
        "--rank",
        metavar="N",
        min=0,
        help="The one rank that the virtual GPU runs; default: rank 0, and those that differ from it (pipeline stages, "
        "uneven shards).",
    ),
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", metavar="N", min=1, help="Stop the script after N optimizer steps.")
]
AllocConfOption = Annotated[
    str | None,
    typer.Option("--alloc-conf", metavar="CONF", help="Allocator settings, as PYTORCH_ALLOC_CONF takes them."),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--cuda-context",
        metavar="SIZE",
        help="What CUDA itself holds on your card beside PyTorch, such as 900MiB: nvidia-smi minus memory_reserved().",
    ),
]
TargetTorchOption = Annotated[
    str | None,
    typer.Option(
        "--target-torch",
        metavar="X.Y",
        help="The torch of the machine that the job is for, such as 2.4: known differences of memory are made.",
    ),
]
ApplyOption = Annotated[
    Path | None, typer.Option("--apply", metavar="FILE", help="Apply the remedies of this oomdoc.yaml to the script.")
]
RunDirOption = Annotated[
    Path | None,
    typer.Option("-o", "--run-dir", metavar="DIR", help="Where the recording goes. Default: .oomdoc/SCRIPT-TIME."),
]
RunTargetOption = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--run-dir",
        metavar="DIR|URL",
        help="Where the recording goes; an fsspec URL gets a copy. Default: .oomdoc/SCRIPT-TIME.",
    ),
]
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script untouched.", show_default=False)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How a script is run: card, ranks, steps, allocator. A recording is judged against `gpu` and `capacity`."""

    gpu: GpuOption = None
    virtual: VirtualOption = None
    capacity: CapacityOption = None
    module: ModuleOption = False
    nproc_per_node: NprocOption = 1
    nnodes: NnodesOption = 1
    rank: RankOption = None
    steps: StepsOption = None
    alloc_conf: AllocConfOption = None
    cuda_context: ContextOption = None
    target_torch: TargetTorchOption = None


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `JobOptions` in the place of its parameter `job`, which receives them.

    Those of `RealOptions` in the place of `real`, where it has that one.
    """
    groups = {"job": JobOptions, "real": RealOptions}
    taken = {name: groups[name] for name in inspect.signature(command).parameters if name in groups}

    @functools.wraps(command)
    def expanded(**values: Any) -> None:
        records = {
            name: group(**{each.name: values.pop(each.name) for each in fields(group)}) for name, group in taken.items()
        }
        command(**records, **values)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in taken:
            group = taken[parameter.name]
            parameters += [_parameter(each.name, each.default, each.type) for each in fields(group)]
        else:
            parameters.append(_parameter(parameter.name, parameter.default, parameter.annotation))
    # what typer reads; kept apart from `command`, whose own signature stays what it is
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in parameters}
    return expanded


def talking(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command --quiet and --verbose."""
    parameters = inspect.signature(command).parameters

    @functools.wraps(command)
    def expanded(quiet: bool = False, verbose: bool = False, **values: Any) -> None:
        Talk.quiet, Talk.verbose = quiet, verbose
        command(**values)

    own = [_parameter(each.name, each.default, each.annotation) for each in parameters.values()]
    own += [_parameter("quiet", False, QuietOption), _parameter("verbose", False, VerboseOption)]
    expanded.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in own}
    return expanded


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
