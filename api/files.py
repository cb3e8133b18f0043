"""Which files are meant by a path: a snapshot, or a run directory with one for each rank."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnreadableInputError

if TYPE_CHECKING:
    from ..snapshots.model import Snapshot

RUNS = Path(".oomdoc")
LATEST = RUNS / "latest"
_RANK_FILE = re.compile(r"^rank(\d+)\.pickle$")
_RANK = re.compile(r"(?:^|[^a-z])rank[-_ .=]?(\d+)", re.IGNORECASE)
_SNAPSHOT_FILE = re.compile(r"\.(pickle|pkl)(\.(gz|bz2|xz|zip))?$")


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
