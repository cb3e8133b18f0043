"""`oomdoc gate`: fail when a job needs more memory than its budget, its headroom or its baseline allows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import OomdocError
from ..gates.metric import Metric
from .format import Format
from .options import ApplyOption, FormatOption, JobOptions, OutputOption, ScriptArguments, with_job_options

if TYPE_CHECKING:
    from ..gates.settings import JobSettings
    from .gating import Asked

EPILOG = """Examples:

[bold]oomdoc gate[/bold]  every job of oomdoc.toml, on a runner without a GPU

[bold]oomdoc gate --update[/bold]  the growth is meant: write the baseline file, to be committed

[bold]oomdoc gate --budget 30GiB --gpu a100-40gb train.py --batch-size 8[/bold]  one script, one limit

[bold]oomdoc gate --growth 2% --baseline main.json train.py[/bold]  against a baseline; --update writes it

[bold]oomdoc gate --budget 30GiB snapshot.pickle[/bold]  a recording that another job made
"""


@with_job_options
def gate(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCRIPT|SNAPSHOT|RUNDIR]",
            help="What to measure. Default: the jobs of oomdoc.toml, or of [tool.oomdoc] in pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    args: ScriptArguments = None,
    *,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="SIZE", help="The most that the job may need, such as 30GiB.")
    ] = None,
    headroom: Annotated[
        str | None,
        typer.Option("--headroom", metavar="SIZE|%", help="What has to stay free on the card beside the peak."),
    ] = None,
    growth: Annotated[
        str | None,
        typer.Option("--growth", metavar="SIZE|%", help="How much more than the baseline it may need; 0 is nothing."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="The baseline file. Default: oomdoc-baseline.json."),
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Write what was measured as the new baseline.")] = False,
    metric: Annotated[
        Metric | None,
        typer.Option(
            help="The peak that counts: torch.cuda.max_memory_allocated, max_memory_reserved, or tensors. "
            "Default: allocated."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Another file than oomdoc.toml here.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Only this job of the file; may be repeated.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--jobs", "-j", metavar="N", min=1, help="Jobs at a time. Default: as many as there are cores."),
    ] = None,
    job: JobOptions,
    apply: ApplyOption = None,
    form: FormatOption = Format.TERMINAL,
    output: OutputOption = None,
) -> None:
    """Exit with status 1 when a job needs more memory than it may, and say what grew and where.

    Scripts run first, as by `oomdoc run`; an out-of-memory always fails the gate. The limits are those of the options,
    or of oomdoc.toml for each of its jobs. Exit status 2: there is no baseline for a job that has to be compared with
    one; 3: a script failed of itself, so that it cannot be judged.
    """
    from .gating import Asked, run_gate

    if target is None:
        if args or job != JobOptions() or any(each is not None for each in (budget, headroom, growth, metric, apply)):
            raise OomdocError(
                "limits on the command line are for one script, and so is how it is run: name it, or write them into "
                "oomdoc.toml"
            )
        asked = _configured(config, only or [], baseline, workers)
    else:
        if config is not None or only or workers is not None:
            raise OomdocError(f"--config, --job and --jobs are for the jobs of a file, and {target} is none of them")
        limits = (budget, headroom, growth, metric or Metric.ALLOCATED)
        asked = Asked(
            jobs=(_one(target, args or [], job, apply, limits, update),), baseline=baseline or _default_baseline()
        )
    status = run_gate(asked, update=update, form=form, output=output)
    if status:
        raise typer.Exit(status)


def _default_baseline() -> Path:
    from ..gates.settings import BASELINE

    return Path(BASELINE)


def _configured(config: Path | None, only: list[str], baseline: Path | None, workers: int | None) -> "Asked":
    from ..gates.settings import find, read
    from .gating import Asked

    path = config or find(Path())
    if path is None:
        raise OomdocError(
            "a gate needs a target and a limit (oomdoc gate --budget 30GiB train.py), or an oomdoc.toml here with "
            '[gate.jobs.train] and script = "train.py"'
        )
    settings = read(path)
    names = {job.name for job in settings.jobs} | {job.name.partition("[")[0] for job in settings.jobs}
    for name in only:
        if name not in names:
            raise OomdocError(f"{path} has no job {name!r}: {', '.join(job.name for job in settings.jobs)}")
    jobs = tuple(job for job in settings.jobs if not only or {job.name, job.name.partition("[")[0]} & set(only))
    return Asked(jobs=jobs, baseline=baseline or settings.baseline, whole=not only, workers=workers, from_file=True)


def _one(
    target: str,
    args: list[str],
    job: JobOptions,
    apply: Path | None,
    limits: tuple[str | None, str | None, str | None, Metric],
    update: bool,
) -> "JobSettings":
    """The one job of a command line. Its name in a baseline is the command itself."""
    from ..gates.settings import JobSettings, limits_of
    from .inputs import is_script, no_arguments

    script = is_script(target, job.module)
    if not script:
        no_arguments(target, args)
    given = limits_of(*limits)
    if not given.given and not update:
        raise OomdocError("a gate needs a limit: --budget 30GiB, --headroom 10% or --growth 2%")
    return JobSettings(
        name=" ".join([target, *args]),
        limits=given,
        script=target if script else None,
        args=tuple(args),
        module=job.module,
        snapshots=() if script else (target,),
        gpu=job.gpu,
        capacity=job.capacity,
        nproc_per_node=job.nproc_per_node,
        nnodes=job.nnodes,
        rank=job.rank,
        steps=job.steps,
        alloc_conf=job.alloc_conf,
        cuda_context=job.cuda_context,
        target_torch=job.target_torch,
        apply=str(apply) if apply else None,
        virtual=job.virtual,
    )
