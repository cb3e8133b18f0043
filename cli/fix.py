"""`oomdoc fix`: the plan as a patch of a configuration."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..api.files import LATEST
from ..errors import OomdocError
from .inputs import CONFIG_FILE, read_text
from .options import JobOptions, RunDirOption, ScriptArguments, with_job_options

if TYPE_CHECKING:
    from ..remedies.frameworks.interface import Framework, Patch, Target
    from ..remedies.interface import Setting
    from .inputs import Command

EPILOG = """Examples:

[bold]oomdoc fix[/bold]  the latest plan as oomdoc.yaml, shown as a diff

[bold]oomdoc fix --config args.yaml --write[/bold]  into your config, whose framework is told from what is in it

[bold]oomdoc fix --gpu a100-40gb --config args.yaml train.py args.yaml[/bold]  plan, patch, and run again with the patch

[bold]oomdoc fix --code[/bold]  the lines of your script that the diagnosis blames, changed: a proposal as a diff

[bold]oomdoc fix --config titan.toml --framework-version 0.2[/bold]  for a release that is not the one installed here
"""


class FixCommand(TyperCommand):
    """Behind a script everything is the script's; behind a recording options are ours as before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = not any(arg.endswith(".py") or arg in ("-m", "--module") for arg in args)
        return super().parse_args(ctx, args)


MOST_TRIES = 4  # patches that are run, where the first does not do


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What is to be written, and, where there is one, the run that can prove it."""

    settings: "Sequence[Setting]"
    target: "Target"
    directory: Path | None = None
    command: "Command | None" = None


@with_job_options
def fix(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCRIPT|RUNDIR|SNAPSHOT|oomdoc.yaml]", help="Default: the latest run here.", show_default=False
        ),
    ] = None,
    args: ScriptArguments = None,
    *,
    job: JobOptions,
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework",
            metavar="NAME",
            help="torch, hf, accelerate, deepspeed, lightning, torchtitan, torchtune or axolotl. "
            "Default: what --config is, or torch.",
        ),
    ] = None,
    framework_version: Annotated[
        str | None,
        typer.Option(
            "--framework-version", metavar="X.Y", help="Its release where you train. Default: the one installed here."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The file to patch: YAML, JSON or TOML.")
    ] = None,
    code: Annotated[
        bool,
        typer.Option(
            "--code",
            help="Instead: changes of your code, at the lines of the diagnosis (detach, no_grad, map_location, a model "
            "moved when it is used). Read them before you --write them.",
        ),
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Change the file; the old one is kept as FILE.bak.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Run the script again with the patched file, on the virtual GPU."),
    ] = True,
    run_dir: RunDirOption = None,
) -> None:
    """Show the change that a plan asks for as a unified diff, or write it.

    Takes the oomdoc.yaml that `plan` left in a run directory; a script is planned for first, and for a bare snapshot
    the best estimate is taken. Comments, the order of keys and keys that oomdoc does not know stay, and so does the
    effective batch. Exit status 1 when the job runs out of memory with the change too: then nothing is written.
    """
    from .output import put, say

    if code:
        _code(target or str(LATEST), args, job, write)
        return
    before, writer, path = _file(framework, config)
    planned = _planned(target, args, job, verify, run_dir)
    made_for = replace(planned.target, framework_version=framework_version)
    options = _options(writer, before, replace(planned, target=made_for), path)
    fits = True
    for planned, patch in options[:MOST_TRIES]:
        for note in patch.notes:
            say(note)
        for each in patch.unsupported:
            say(f"{each.name} is not in {path}: {each.reason}")
        if patch.text == patch.before:
            if planned.settings and len(patch.unsupported) == len(planned.settings):
                raise OomdocError(
                    f"none of the planned changes can be written into {path}; what to do instead is above"
                )
            say(f"nothing to change in {path}")
            return
        fits = not verify or _proven(planned, path, patch)
        if fits:
            break
    if not write:
        put(patch.diff(path.as_posix()))
    elif fits:
        _write(path, patch)
    if not fits:
        say(f"{path} is as it was" if write else "this diff alone does not do; `oomdoc plan` has more")
        raise typer.Exit(1)


def _options(writer: "Framework", before: str, planned: Planned, path: Path) -> "list[tuple[Planned, Patch]]":
    """The plan as a patch; where the file has no key for a part of it, the next that fit and that it can express."""
    from .output import say

    patch = writer.patch(before, planned.settings, planned.target)
    if not patch.unsupported or planned.directory is None:
        return [(planned, patch)]
    found = []
    for settings, peak in _alternatives(planned.directory):
        try:
            other = writer.patch(before, settings, planned.target)
        except OomdocError:
            continue
        if not other.unsupported and other.text != before:
            target = replace(planned.target, peak_bytes=peak)
            found.append((replace(planned, settings=settings, target=target), other))
    if found:
        missing = ", ".join(each.name for each in patch.unsupported)
        say(f"{path} cannot express all of the plan ({missing}): taking the next by estimate")
    return found or [(planned, patch)]


def _alternatives(directory: Path) -> "list[tuple[Sequence[Setting], int]]":
    """What else should fit, best first, by estimates from the recording; with the whole step where `plan` left it."""
    from ..api.files import snapshot_files
    from ..api.pipeline import job_of, profile_files
    from ..remedies.planner import plan as make
    from .inputs import read_command

    profile = profile_files(snapshot_files([str(directory)]))
    whole = directory / "unlimited"
    complete = profile_files(snapshot_files([str(whole)])) if any(whole.glob("rank*.pickle")) else None
    command = read_command(directory)
    made = make(profile, job_of(profile, nnodes=command.nnodes if command else 1), whole=complete)
    return [
        (each.estimate.settings, each.estimate.predicted_peak_bytes.expected) for each in made.candidates if each.fits
    ]


def _code(target: str, args: Sequence[str] | None, job: JobOptions, write: bool) -> None:
    from ..api.files import snapshot_files
    from ..api.pipeline import diagnose_files
    from ..remedies.frameworks.interface import Patch
    from .fix_code import changed_files
    from .inputs import is_script, no_arguments
    from .output import put

    if is_script(target, job.module):
        raise OomdocError("--code takes what a run has recorded: `oomdoc run` the script, then `oomdoc fix --code`")
    no_arguments(target, args)
    for path, (before, after) in changed_files(diagnose_files(snapshot_files([target]))).items():
        patch = Patch(framework="code", before=before, text=after)
        if write:
            _write(path, patch)
        else:
            put(patch.diff(os.path.relpath(path)))


# --- what is to be written ---


def _planned(
    target: str | None, args: Sequence[str] | None, job: JobOptions, verify: bool, run_dir: Path | None
) -> Planned:
    from .inputs import is_script, no_arguments, read_command

    target = target or str(LATEST)
    if is_script(target, job.module):
        target = _plan_first(target, args, job, verify, run_dir)
        job = replace(job, gpu=None, capacity=None)
    else:
        no_arguments(target, args)
    path = Path(target)
    file = path / CONFIG_FILE if path.is_dir() else path
    if file.suffix not in (".yaml", ".yml") or not file.is_file() or job.gpu or job.capacity:
        return _estimated(target, job.gpu, job.capacity)
    directory = path if path.is_dir() else None
    return replace(_read(file), directory=directory, command=read_command(directory) if directory else None)


def _plan_first(script: str, args: Sequence[str] | None, job: JobOptions, verify: bool, run_dir: Path | None) -> str:
    """Record the script and plan for it; -> the run directory, with its oomdoc.yaml."""
    from .launching import command_of, new_run_dir
    from .output import say
    from .plan import applicable, planned_run

    command = command_of(script, args, job)
    directory = new_run_dir(command, run_dir)
    report = planned_run(command, directory, verify)
    if not report.verdict.out_of_memory:
        say(f"{script} fits as it is: nothing to fix")
        raise typer.Exit(0)
    if report.plan is None or applicable(report.plan) is None:
        raise OomdocError(f"no change that can be written makes {script} fit; `oomdoc plan {directory}` says why")
    return str(directory)


def _read(file: Path) -> Planned:
    from ..remedies.config_file import read
    from ..remedies.frameworks.interface import Target

    config = read(file)
    return Planned(
        settings=config.remedies,
        target=Target(
            script=config.script,
            gpu=config.gpu,
            world_size=config.world_size,
            batch_size=config.batch_size,
            peak_bytes=config.expected_peak_bytes,
            step_time_factor=config.expected_step_time_factor,
        ),
    )


def _estimated(target: str, gpu: str | None, capacity: str | None) -> Planned:
    from ..api.files import snapshot_files
    from ..api.pipeline import job_of, profile_files
    from ..remedies.frameworks.interface import Target
    from ..remedies.planner import plan as make
    from .output import say
    from .plan import applicable

    profile = profile_files(snapshot_files([target]), gpu, capacity)
    job = job_of(profile, gpu)
    chosen = applicable(make(profile, job))
    if chosen is None:
        raise OomdocError(f"no change that can be written makes {target} fit; `oomdoc plan {target}` says why")
    say(f"taking {chosen.name}, which is an estimate: `oomdoc plan` with the script proves it")
    estimate = chosen.estimate
    return Planned(
        settings=estimate.settings,
        target=Target(
            gpu=job.gpu,
            world_size=job.world_size,
            batch_size=job.batch_size,
            peak_bytes=estimate.predicted_peak_bytes.expected,
            step_time_factor=round(estimate.step_time_factor.expected, 3),
        ),
    )


# --- the file ---


def _file(name: str | None, config: Path | None) -> "tuple[str, Framework, Path]":
    """The text to patch ("" for a new file), who writes it, and where it is."""
    from ..remedies.frameworks.all_frameworks import FRAMEWORKS, detect

    if name is not None and name not in FRAMEWORKS:
        raise OomdocError(f"there is no framework {name!r}: {', '.join(FRAMEWORKS)}")
    named = None if name is None else FRAMEWORKS[name]
    if config is None:
        chosen = named or FRAMEWORKS["torch"]
        if chosen.NEW_FILE is None:
            raise OomdocError(f"name the file with --config: a {chosen.TITLE} is more than what a plan says")
        path = Path(chosen.NEW_FILE)
        return (read_text(path) if path.exists() else ""), chosen, path
    if not config.exists():
        if named is None or named.NEW_FILE is None:
            raise OomdocError(f"there is no file {config}")
        return "", named, config
    text = read_text(config)
    return text, named or detect(text, str(config)), config


def _proven(planned: Planned, path: Path, patch: "Patch") -> bool:
    """Run the script with the patched file, and say what came of it; True where it fits, or nothing could be run."""
    from ..diagnosers.text import size
    from .output import say
    from .plan import can_run
    from .verify import with_config

    command, directory = planned.command, planned.directory
    if command is None or directory is None or not can_run(command):
        return True
    seen = with_config(command, directory, path, patch.text, apply=patch.framework == "torch")
    if seen is None:
        say(f"not verified: {command.script} was not run with {path} as an argument")
        return True
    if seen.error is not None:
        say(f"not verified: {seen.error}")
        return True
    planned_bytes = planned.target.peak_bytes
    foretold = "" if planned_bytes is None else f"predicted {size(planned_bytes)}, "
    fate = "fits" if seen.fits else "out of memory"
    say(f"{foretold}verified {size(seen.peak_bytes)} on the virtual {command.gpu}: {fate}")
    return seen.fits


def _write(path: Path, patch: "Patch") -> None:
    """Whole or not at all, with the mode of the old file; a link stays one."""
    from .output import checked_output, note

    checked_output(path)
    path = path.resolve() if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.oomdoc")
    try:
        if path.exists():
            backup = _backup(path, patch.before)
            note(f"kept the old file as {backup}")
        temporary.write_bytes(patch.text.encode())
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o7777)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OomdocError(f"cannot write {path}: {error.strerror}") from error
    note(f"wrote {path}")


def _backup(path: Path, text: str) -> Path:
    """A copy that takes no earlier one's place."""
    content = text.encode()
    for number in range(1000):
        backup = path.with_name(f"{path.name}.bak{number or ''}")
        if not backup.exists():
            backup.write_bytes(content)
            return backup
        if backup.read_bytes() == content:
            return backup
    raise OomdocError(f"there are a thousand backups of {path}: remove some")
