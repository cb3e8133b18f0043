"""`oomdoc fix`: the plan as a patch of a configuration."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import OomdocError
from .inputs import CONFIG_FILE, LATEST
from .options import CapacityOption, GpuOption

if TYPE_CHECKING:
    from ..remedies.frameworks.interface import Framework, Patch, Target
    from ..remedies.interface import Setting

EPILOG = """Examples:

[bold]oomdoc fix[/bold]  the latest plan as oomdoc.yaml, shown as a diff

[bold]oomdoc fix --config args.yaml --write[/bold]  into the arguments of a Hugging Face Trainer

[bold]oomdoc fix --framework deepspeed --config ds.json[/bold]  what would change in a DeepSpeed config
"""

# What a new file is called where no --config names one.
_NEW_FILES = {"torch": CONFIG_FILE, "hf": "training_args.yaml", "deepspeed": "ds_config.json"}


def fix(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUNDIR|SNAPSHOT|oomdoc.yaml]", help="Default: the latest run here.", show_default=False
        ),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework", metavar="NAME", help="torch, hf or deepspeed. Default: what --config is, or torch."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The file to patch; it need not exist.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the file; the old one is kept as FILE.bak.")] = False,
    gpu: GpuOption = None,
    capacity: CapacityOption = None,
) -> None:
    """Show the change that a plan asks for as a unified diff, or write it.

    Takes the oomdoc.yaml that `plan` left in a run directory; for a bare snapshot the best estimate is taken. Comments
    and the order of keys are kept.
    """
    from .output import put, say

    settings, made_for = _planned(target or str(LATEST), gpu, capacity)
    before, writer, path = _file(framework, config)
    patch = writer.patch(before, settings, made_for)
    for note in patch.notes:
        say(note)
    for each in patch.unsupported:
        say(f"{each.name} is not in {path}: {each.reason}")
    if patch.text == patch.before:
        say(f"nothing to change in {path}")
    elif write:
        _write(path, patch)
    else:
        put(patch.diff(path.as_posix()))


def _planned(target: str, gpu: str | None, capacity: str | None) -> "tuple[Sequence[Setting], Target]":
    """The settings of a plan, and what it was made for."""
    from ..remedies.config_file import read
    from ..remedies.frameworks.interface import Target

    path = Path(target)
    file = path / CONFIG_FILE if path.is_dir() else path
    if file.suffix in (".yaml", ".yml") and file.is_file() and gpu is None and capacity is None:
        config = read(file)
        return config.remedies, Target(
            script=config.script,
            gpu=config.gpu,
            world_size=config.world_size,
            batch_size=_batch_size(path),
            peak_bytes=config.expected_peak_bytes,
            step_time_factor=config.expected_step_time_factor,
        )
    return _estimated(target, gpu, capacity)


def _batch_size(directory: Path) -> int | None:
    """Per GPU, from the recording beside the plan."""
    from ..remedies.job_facts import read
    from .inputs import load, snapshot_files

    if not directory.is_dir():
        return None
    snapshots = load(snapshot_files([str(directory)])[:1])
    return read(snapshots[0].recording).loader_batch_size


def _estimated(target: str, gpu: str | None, capacity: str | None) -> "tuple[Sequence[Setting], Target]":
    from ..remedies.frameworks.interface import Target
    from ..remedies.planner import plan as make
    from .inputs import snapshot_files
    from .output import say
    from .pipeline import job_of, profile_files
    from .plan import applicable

    profile = profile_files(snapshot_files([target]), gpu, capacity)
    job = job_of(profile, gpu, None)
    chosen = applicable(make(profile, job))
    if chosen is None:
        raise OomdocError(f"no change that can be written makes {target} fit; `oomdoc plan {target}` says why")
    say(f"taking {chosen.name}, which is an estimate: `oomdoc plan` with the script proves it")
    estimate = chosen.estimate
    return estimate.settings, Target(
        gpu=job.gpu,
        world_size=job.world_size,
        batch_size=job.batch_size,
        peak_bytes=estimate.predicted_peak_bytes.expected,
        step_time_factor=round(estimate.step_time_factor.expected, 3),
    )


def _file(name: str | None, config: Path | None) -> "tuple[str, Framework, Path]":
    """The text to patch ("" for a new file), who writes it, and where it is."""
    from ..remedies.frameworks.all_frameworks import FRAMEWORKS, detect

    if name is not None and name not in FRAMEWORKS:
        raise OomdocError(f"there is no framework {name!r}: {', '.join(FRAMEWORKS)}")
    if config is None:
        chosen = FRAMEWORKS[name or "torch"]
        path = Path(_NEW_FILES.get(chosen.NAME, f"{chosen.NAME}.yaml"))
        return _text(path), chosen, path
    text = _text(config)
    if name is not None:
        return text, FRAMEWORKS[name], config
    return text, detect(text, str(config)) if text else FRAMEWORKS["torch"], config


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise OomdocError(f"cannot read {path}: {error}") from error


def _write(path: Path, patch: "Patch") -> None:
    from .output import say, write_file

    if path.exists():
        backup = path.with_name(path.name + ".bak")
        write_file(backup, patch.before)
        say(f"kept the old file as {backup}")
    write_file(path, patch.text)
    say(f"wrote {path}")
