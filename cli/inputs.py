"""What the argument of a command is: a script to run, a run directory, or snapshot files."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import OomdocError, UnreadableInputError

if TYPE_CHECKING:
    from ..snapshots.model import Snapshot

RUNS = Path(".oomdoc")
LATEST = RUNS / "latest"
RUN_FILE = "run.json"
RUN_SCHEMA = "oomdoc.run/1"
CONFIG_FILE = "oomdoc.yaml"
_RANK_FILE = re.compile(r"^rank(\d+)\.pickle$")
# what training scripts call theirs: rank0_memory_snapshot.pickle, mem-rank_3.pkl.gz
_RANK = re.compile(r"(?:^|[^a-z])rank[-_ .=]?(\d+)", re.IGNORECASE)
_SNAPSHOT_FILE = re.compile(r"\.(pickle|pkl)(\.(gz|bz2|xz|zip))?$")


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


def snapshot_files(targets: Sequence[str]) -> list[Path]:
    """The snapshot files of files and run directories, in the order of their ranks."""
    found: list[Path] = []
    for target in targets:
        path = Path(target)
        if path.is_dir():
            found += _of_directory(path)
        elif path.exists():
            found.append(path)
        else:
            hint = "; nothing has been recorded here yet: oomdoc run train.py" if path == LATEST else ""
            raise UnreadableInputError(f"there is no file or directory {target}{hint}")
    return found


def _of_directory(directory: Path) -> list[Path]:
    ranks = {int(match.group(1)): path for path in directory.iterdir() if (match := _RANK_FILE.match(path.name))}
    if ranks:
        return [ranks[rank] for rank in sorted(ranks)]
    others = _snapshots_in(directory)
    if not others:
        inner = next((path for path in sorted(directory.iterdir()) if path.is_dir() and _snapshots_in(path)), None)
        hint = f"; {inner} does" if inner else ""
        raise UnreadableInputError(f"{directory} holds no snapshot: no rank0.pickle, and no other .pickle{hint}")
    numbers = ranks_of(others)
    return [path for _, path in sorted(zip(numbers, others, strict=True))] if numbers else others


def _snapshots_in(directory: Path) -> list[Path]:
    """In the order of the numbers in their names."""
    found = [path for path in directory.iterdir() if _SNAPSHOT_FILE.search(path.name) and path.name[0] != "."]
    return sorted(found, key=lambda path: [int(part) if part.isdigit() else part for part in _parts(path.name)])


def _parts(name: str) -> list[str]:
    """Text and number in turn, so that like is compared with like."""
    return re.split(r"(\d+)", name)


def ranks_of(files: Sequence[Path]) -> list[int] | None:
    """The rank that the name of each of several files tells; None unless all do, and no two the same.

    One file alone may be called so for another reason (lora_rank8.pickle).
    """
    numbers = [int(found[-1]) for path in files if (found := _RANK.findall(path.name))]
    return numbers if len(set(numbers)) == len(files) > 1 else None


def load(files: Sequence[Path]) -> "list[Snapshot]":
    """Raises UnreadableInputError for a file of which nothing could be read."""
    from ..snapshots.reader import load_all

    snapshots = load_all(files, meanwhile=_import_the_analysis)
    for path, snapshot in zip(files, snapshots, strict=True):
        if snapshot.problems and not any(len(each.trace) or len(each.segments) for each in snapshot.devices):
            raise UnreadableInputError(f"{path} holds nothing that can be read: {snapshot.problems[0]}")
    return snapshots


def _import_the_analysis() -> None:
    """What every caller needs next takes as long to import as a large file takes to be read a good part."""
    from ..diagnosers import diagnose, profile  # noqa: F401
    from ..reports import build  # noqa: F401


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
