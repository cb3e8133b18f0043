"""What the argument of a command is: a script to run, a run directory, or snapshot files."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import OomdocError, UnreadableInputError

RUN_FILE = "run.json"
RUN_SCHEMA = "oomdoc.run/1"
CONFIG_FILE = "oomdoc.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A script and how it was run: what a run directory keeps, so that `plan` can run it again."""

    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    virtual: bool = True
    gpu: str | None = None
    capacity_bytes: int | None = None
    nproc_per_node: int = 1
    nnodes: int = 1
    rank: int = 0
    others: bool = False  # also the ranks that differ from it
    steps: int | None = None
    alloc_conf: str | None = None
    context_bytes: int | None = None
    target_torch: str | None = None  # X.Y
    apply: str | None = None
    largest_batch: bool = False

    @property
    def world_size(self) -> int:
        return self.nproc_per_node * self.nnodes


def is_script(target: str, module: bool) -> bool:
    """A module, or a file that Python runs; anything else is a recording."""
    return module or target.endswith(".py")


def no_arguments(target: str, args: Sequence[str] | None) -> None:
    """A recording takes no arguments: an option behind it would be taken for a script's, and do nothing."""
    if args:
        what = args[0].partition("=")[0]
        raise OomdocError(
            f"{target} is no script and takes no arguments: write {what} before {target}, or leave it out"
        )


def check_script(script: str, module: bool) -> None:
    if not module and not Path(script).is_file():
        raise OomdocError(f"there is no file {script}; give a Python script, or -m and a module")


def write_command(run_dir: Path, command: Command) -> None:
    content = {"schema": RUN_SCHEMA, **asdict(command)}
    (run_dir / RUN_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_command(run_dir: Path) -> Command | None:
    """How the run in this directory was made; None where that is not recorded (a directory of bare snapshots)."""
    path = run_dir / RUN_FILE
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != RUN_SCHEMA:
            raise ValueError("another schema")
        content["args"] = tuple(content["args"])
        return Command(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableInputError(f"{path} does not say how the run was made: {error}") from error


def read_text(path: Path) -> str:
    """A file that is to be changed, as it is, line ends included.

    Raises UnreadableInputError where it cannot be read, or is not text in UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UnreadableInputError(f"cannot read {path}: {reason}. Nothing was changed.") from error
