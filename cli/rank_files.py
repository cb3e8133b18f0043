"""The files of many ranks: summaries merged, the few snapshots that show most, copies of what lies elsewhere."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UnreadableInputError

if TYPE_CHECKING:
    from ..diagnosers.ranks import Ranks
    from ..reports.model import CardSamples, Held

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


def cards_in(directory: Path) -> "tuple[CardSamples, ...]":
    """What NVML said of the cards that ranks of this run directory used; empty where nothing did."""
    paths = sorted(directory.glob("node-*.json")) if directory.is_dir() else []
    return tuple(card for path in paths for card in _cards(path))


def _cards(path: Path) -> "list[CardSamples]":
    from ..reports.model import CardSamples

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ranks = {int(pid): int(rank) for pid, rank in content.get("ranks", {}).items()}
        seen: dict[str, list[tuple[float, dict[str, Any]]]] = {}
        for sample in content["cards"]:
            for card in sample["cards"]:
                seen.setdefault(str(card["uuid"]), []).append((float(sample["time"]), card))
        return [
            CardSamples(
                host=str(content.get("host", "")),
                card=uuid,
                total_bytes=int(rows[0][1]["total_bytes"]),
                seconds=tuple(time - rows[0][0] for time, _ in rows),
                used_bytes=tuple(int(card["used_bytes"]) for _, card in rows),
                held=tuple(_held([card for _, card in rows], ranks)),
            )
            for uuid, rows in seen.items()
            if any(int(pid) in ranks for _, card in rows for pid, _ in card["holders"])
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _held(rows: Sequence[Mapping[str, Any]], ranks: Mapping[int, int]) -> "list[Held]":
    """Each process that held some of a card, with one figure per row."""
    from ..reports.model import Held

    held = [{int(pid): int(used) for pid, used in row["holders"]} for row in rows]
    reserved = [{int(pid): int(each) for pid, each in row.get("reserved_bytes", {}).items()} for row in rows]
    found = []
    for pid in dict.fromkeys(pid for row in held for pid in row):
        told = all(pid in there for row, there in zip(held, reserved, strict=True) if pid in row)
        found.append(
            Held(
                process=f"rank {ranks[pid]}" if pid in ranks else f"process {pid}",
                own=pid in ranks,
                bytes=tuple(row.get(pid, 0) for row in held),
                reserved_bytes=tuple(row.get(pid, 0) for row in reserved) if told else None,
            )
        )
    return found


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
