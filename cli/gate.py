"""`oomdoc gate`: fail when a job needs more memory than its budget."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import OomdocError, UnreadableInputError
from .format import Format
from .options import ApplyOption, FormatOption, JobOptions, OutputOption, ScriptArguments, with_job_options

if TYPE_CHECKING:
    from ..diagnosers.interface import DeviceProfile, Diagnosis

EPILOG = """Examples:

[bold]oomdoc gate --budget 30GiB --gpu a100-40gb train.py --batch-size 8[/bold]  in CI, on a runner without a GPU

[bold]oomdoc gate --budget 30GiB snapshot.pickle[/bold]  a recording that another job made
"""


class Metric(str, Enum):
    """Which peak the budget is for."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    REQUESTED = "requested"


@with_job_options
def gate(
    target: Annotated[str, typer.Argument(metavar="SCRIPT|SNAPSHOT|RUNDIR", help="What to measure.")],
    args: ScriptArguments = None,
    *,
    job: JobOptions,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="SIZE", help="The most that the job may need, such as 30GiB.")
    ] = None,
    metric: Annotated[
        Metric,
        typer.Option(help="The peak that counts: torch.cuda.max_memory_allocated, max_memory_reserved, or tensors."),
    ] = Metric.ALLOCATED,
    apply: ApplyOption = None,
    form: FormatOption = Format.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Exit with status 1 when the peak is above the budget, and say what holds the bytes.

    A script is run first, as by `oomdoc run`; an out-of-memory always fails the gate.
    """
    from ..configs.loader import parse_size
    from .inputs import is_script, no_arguments, snapshot_files
    from .launching import command_of

    script = is_script(target, job.module)
    if not script:
        no_arguments(target, args)
    if budget is None:
        raise OomdocError("a gate needs a budget: --budget 30GiB")
    budget_bytes = parse_size(budget)
    card = (job.gpu, job.capacity)
    if script:
        command = command_of(target, args, job, apply)
        files = _recorded(command, form, output)
        card = (None, None)  # the recording knows its own
    else:
        files = snapshot_files([target])
    if not _judge(files, target, budget_bytes, metric, card, form, output):
        raise typer.Exit(1)


def _recorded(command: object, form: Format, output: Path | None) -> list[Path]:
    from .inputs import Command
    from .launching import new_run_dir, record
    from .output import say, script_output
    from .run import own_status

    assert isinstance(command, Command)
    with script_output(form, output):
        result = record(command, new_run_dir(command))
    if result.failure:
        say(result.failure)
    if not result.snapshots or (result.exit_status and not result.out_of_memory):
        status = own_status(result.exit_status)
        raise UnreadableInputError(f"the script ended with status {status} of itself: the gate cannot judge it")
    return [Path(path) for path in result.snapshots]


def _judge(
    files: list[Path],
    target: str,
    budget: int,
    metric: Metric,
    card: tuple[str | None, str | None],
    form: Format,
    output: Path | None,
) -> bool:
    from ..reports.build import build
    from ..reports.model import Gate
    from .output import emit
    from .pipeline import diagnose_files

    diagnosis = diagnose_files(files, *card)
    peak = highest(diagnosis, metric)
    failed = any(device.oom is not None for device in diagnosis.profile.devices)
    verdict = Gate(passed=peak <= budget and not failed, peak_bytes=peak, budget_bytes=budget)
    codes = () if verdict.passed else tuple(f"oomdoc explain {each.code}" for each in diagnosis.findings[:1])
    emit(build(diagnosis, path=target, gate=verdict, next_commands=codes), form, output)
    return verdict.passed


def highest(diagnosis: "Diagnosis", metric: Metric) -> int:
    """The largest peak over devices and ranks: every one of them has to fit.

    Raises OomdocError where the recording does not carry that peak.
    """
    peaks = [_peak(device, metric) for device in diagnosis.profile.devices]
    if not peaks or any(peak is None for peak in peaks):
        raise OomdocError(f"the recording does not tell its peak of {metric.value} bytes; try --metric requested")
    return max(peak for peak in peaks if peak is not None)


def _peak(device: "DeviceProfile", metric: Metric) -> int | None:
    peak = device.peak
    return {
        Metric.ALLOCATED: peak.allocated_bytes,
        Metric.RESERVED: peak.reserved_bytes,
        Metric.REQUESTED: peak.requested_bytes,
    }[metric]
