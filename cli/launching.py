"""Runs a script through recorders.launch: the run directory, the progress line, what is said when it fails."""

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.files import LATEST, RUNS
from ..configs.defaults import DEFAULT_GPU
from ..errors import OomdocError
from ..recorders.nvml import has_cuda
from .following import followers
from .inputs import Command, check_script, write_command
from .output import muted, note, say

if TYPE_CHECKING:
    from ..recorders.launch import RunResult, RunSpec
    from ..recorders.placement import Placement
    from .options import JobOptions
    from .real_options import RealOptions


def command_of(script: str, args: Sequence[str] | None, job: "JobOptions", apply: Path | None = None) -> Command:
    """A script and how to run it as one record, checked as far as that needs no torch."""
    from ..configs.loader import gpu as find
    from ..configs.loader import parse_capacity, parse_size

    check_script(script, job.module)
    ranks = job.nproc_per_node * job.nnodes
    if job.rank is not None and job.rank >= ranks:
        raise OomdocError(f"--rank {job.rank} does not exist among {ranks} ranks (0 is the first)")
    on_virtual = not has_cuda() if job.virtual is None else job.virtual
    if not on_virtual and not has_cuda():
        raise OomdocError("--real needs a CUDA device and none is visible; --virtual runs without one")
    for option, value in (("--cuda-context", job.cuda_context), ("--target-torch", job.target_torch)):
        if value is not None and not on_virtual:
            raise OomdocError(f"{option} is for the virtual GPU: add --virtual, or leave it out")
    gpu = job.gpu
    if on_virtual and gpu is None:
        gpu = DEFAULT_GPU
        note(f"no --gpu was named: taking {gpu}")
    command = Command(
        script=script,
        args=tuple(args or ()),
        module=job.module,
        virtual=on_virtual,
        gpu=None if gpu is None else find(gpu).name,
        capacity_bytes=None if job.capacity is None else parse_capacity(job.capacity),
        nproc_per_node=job.nproc_per_node,
        nnodes=job.nnodes,
        rank=job.rank or 0,
        others=on_virtual and ranks > 1 and job.rank is None,
        steps=job.steps,
        alloc_conf=job.alloc_conf,
        context_bytes=None if job.cuda_context is None else parse_size(job.cuda_context),
        target_torch=None if job.target_torch is None else _version(job.target_torch),
    )
    return command if apply is None else _with_remedies(command, apply)


def _version(text: str) -> str:
    """`2.4` of 2.4, 2.4.1 or 2.4.1+cu121."""
    match = re.match(r"(\d+)\.(\d+)(?:[.+a-z].*)?$", text)
    if match is None or int(match[1]) < 2:
        raise OomdocError(f"--target-torch takes a version of PyTorch 2, such as 2.4; not {text!r}")
    return f"{match[1]}.{match[2]}"


def _with_remedies(command: Command, apply: Path) -> Command:
    """Reads the file before anything starts, and says where it was made for another job.

    The path is the file's own, not that of .oomdoc/latest, which the new run is about to move.
    """
    from ..remedies.config_file import read

    config = read(apply)
    for difference in config.mismatches(script=command.script, gpu=command.gpu, world_size=command.world_size):
        say(f"{apply}: {difference}")
    path = apply.resolve()
    inside = path.is_relative_to(Path.cwd())
    return replace(command, apply=os.path.relpath(path) if inside else str(path))


def placed_by_launcher(command: Command, torchrun: Sequence[str]) -> "Placement | None":
    """The rank that another launcher has made of this process; None where the user asks for ranks of our own."""
    from ..recorders.placement import placement

    return None if command.virtual or command.world_size > 1 or torchrun else placement()


def new_run_dir(
    command: Command, wanted: Path | None = None, placed: "Placement | None" = None, *, kind: str = ""
) -> Path:
    """Makes the directory of a run. Without `wanted`: .oomdoc/SCRIPT-TIME, and .oomdoc/latest points at it.

    The ranks of another launcher share one, named for its job. With a `kind` it is one for several runs,
    .oomdoc/KIND-SCRIPT-TIME, which is not the latest.
    """
    if wanted is not None:
        _make(wanted)
        return wanted
    make_runs()
    name = command.script.rsplit(".", 1)[-1] if command.module else Path(command.script).stem
    if placed is not None:
        path = RUNS / f"{name}-{placed.job}"
        _make(path)
        if placed.rank == 0:
            _point_latest(path)
        return path
    name = f"{kind}-{name}" if kind else name
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        path = RUNS / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        if not kind:
            _point_latest(path)
        return path
    raise OomdocError(f"{RUNS} is full of runs of this second; name a directory with -o")


def make_runs() -> Path:
    """The folder of all runs here, which git leaves alone."""
    _make(RUNS)
    ignore = RUNS / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return RUNS


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OomdocError(f"cannot make {path}: {error.strerror}; name another directory with -o") from error


def _point_latest(path: Path) -> None:
    try:
        if LATEST.is_symlink():
            LATEST.unlink()
        LATEST.symlink_to(path.name, target_is_directory=True)
    except OSError:
        say(f"could not point {LATEST} at {path}")


def record(
    command: Command,
    run_dir: Path,
    *,
    what: str = "recording",
    log: Path | None = None,
    real: "RealOptions | None" = None,
    spec: "Mapping[str, Any] | None" = None,
) -> "RunResult":
    """Runs the command and waits for it; `what` stands before the progress on a terminal.

    With `log` the script's own output goes there, as for the runs that only prove something. `spec`: further fields of
    the RunSpec.
    """
    from ..recorders.launch import run

    try:
        write_command(run_dir, command)
    except OSError as error:
        raise OomdocError(f"cannot write to {run_dir}: {error.strerror}; name another directory with -o") from error
    unhide(command)
    with muted(log) as stream, followers(what, stream, real) as on_progress:
        return run(replace(spec_of(command, run_dir), **(spec or {})), on_progress)


def unhide(command: Command) -> None:
    """What hides the real cards does not hide the virtual one, which was asked for."""
    if command.virtual and os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        del os.environ["CUDA_VISIBLE_DEVICES"]


def spec_of(command: Command, run_dir: Path) -> "RunSpec":
    from ..recorders.launch import RunSpec

    return RunSpec(
        script=command.script,
        args=command.args,
        module=command.module,
        mode="virtual" if command.virtual else "cuda",
        gpu=command.gpu,
        capacity_bytes=command.capacity_bytes,
        steps=command.steps,
        run_dir=run_dir,
        apply=Path(command.apply) if command.apply else None,
        nproc_per_node=command.nproc_per_node,
        nnodes=command.nnodes,
        rank=command.rank,
        others=command.others,
        alloc_conf=command.alloc_conf,
        largest_batch=command.largest_batch,
        context_bytes=command.context_bytes,
        target_torch=_pair(command.target_torch),
        python=sys.executable,
    )


def _pair(version: str | None) -> tuple[int, int] | None:
    if version is None:
        return None
    major, minor = version.split(".")
    return int(major), int(minor)
