"""The files of many ranks: summaries merged, the few snapshots that show most, copies of what lies elsewhere."""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnreadableInputError

if TYPE_CHECKING:
    from ..diagnosers.ranks import Ranks

FEW = 4  # snapshots that are all read and shown
_SNAPSHOT = re.compile(r"rank(\d+)\.pickle$")


def ranks_in(directory: Path) -> "Ranks | None":
    """Of a run directory whose ranks left summaries; None for anything else."""
    paths = sorted(directory.glob("rank*.summary.json")) if directory.is_dir() else []
    if not paths:
        return None
    from ..diagnosers.ranks import merge
    from ..recorders.summary import read

    ranks = merge(map(read, paths))
    return None if ranks is None else replace(ranks, told=(*ranks.told, *_ends(directory)))


def _ends(directory: Path) -> list[str]:
    """What the launcher of each node said of ranks that were killed."""
    return [sentence for path in sorted(directory.glob("node-*.json")) for sentence in _said(path)]


def _said(path: Path) -> list[str]:
    try:
        return [str(each) for each in json.loads(path.read_text(encoding="utf-8")).get("ended", ())]
    except (OSError, ValueError, AttributeError):
        return []


def chosen(files: Sequence[Path], ranks: "Ranks | None") -> list[Path]:
    """All of a few; of many the rank that failed first, and those that hold most and least."""
    if ranks is None or len(files) <= FEW:
        return list(files)
    wanted = ranks.telling()
    of_rank = {int(found[1]): path for path in files if (found := _SNAPSHOT.search(path.name))}
    return [of_rank[rank] for rank in wanted if rank in of_rank] or list(files)[:FEW]


def localised(target: str) -> str:
    """A URL's run directory as a local copy: the small files, and the snapshots that `chosen` would take."""
    if "://" not in target:
        return target
    try:
        import fsspec

        files, root = fsspec.core.url_to_fs(target)
        names = [str(each).rsplit("/", 1)[-1] for each in files.ls(root, detail=False)]
    except Exception as error:  # whatever the storage's own client raises
        raise UnreadableInputError(f"cannot read {target}: {type(error).__name__}: {error}") from error
    folder = Path(tempfile.mkdtemp(prefix="oomdoc-"))

    def get(name: str) -> None:
        files.get(f"{root.rstrip('/')}/{name}", str(folder / name))

    snapshots = [name for name in names if _SNAPSHOT.match(name)]
    for name in names:
        if name.endswith(".json"):
            get(name)
    for path in chosen([folder / name for name in snapshots], ranks_in(folder)):
        get(path.name)
    return str(folder)
