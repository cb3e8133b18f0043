"""A rank's summary beside its snapshot, and which ranks of a large world keep the snapshot itself.

No rank asks another: a small file in the run directory holds the highest and the lowest peak so far, and a rank beyond
it writes its own snapshot and puts itself there. Two at the same moment leave one snapshot too many.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..diagnosers.ranks import SCHEMA, RankSummary, summarise
from ..errors import OomdocError
from ..snapshots.model import Snapshot
from .launch import RunSpec
from .outcome import Outcome
from .seat import Seat
from .uploading import faults_told, upload, write_text

SMALL_WORLD = 16  # ranks; up to here every snapshot is kept
EXTREMES = "extremes.json"


class Summaries:
    def __init__(self, spec: RunSpec, seat: Seat) -> None:
        self.spec = spec
        self.seat = seat
        self._made: RankSummary | None = None
        self._of: Snapshot | None = None

    def keeps(self, snapshot: Snapshot, outcome: Outcome) -> bool:
        """Whether the last dump of this rank goes to disk."""
        policy = self.spec.keep
        if self.spec.mode == "virtual" or policy == "all":
            return True
        if outcome.out_of_memory or (outcome.error is not None and policy != "none"):
            return policy != "none"
        if policy == "auto":
            return self.seat.world_size <= SMALL_WORLD or self._is_extreme(snapshot, outcome)
        return False

    def write(self, snapshot: Snapshot, outcome: Outcome) -> None:
        """`rankN.summary.json`: some kilobytes. Nothing for a job of one process."""
        if self.spec.mode == "virtual" or self.seat.world_size == 1:
            return
        summary = self._summary(snapshot, outcome)
        if summary is not None:
            path = self.spec.run_dir / f"rank{self.seat.rank}.summary.json"
            if write_text(path, dumps(summary)):
                upload(self.spec.upload, path)

    def _summary(self, snapshot: Snapshot, outcome: Outcome) -> RankSummary | None:
        if self._of is not snapshot:
            from ..diagnosers.diagnose import diagnose
            from ..diagnosers.profile import build

            where = self.seat.where
            self._of, self._made = snapshot, None
            with faults_told():  # the snapshot itself is still to be written
                self._made = summarise(
                    diagnose(build([snapshot])),
                    oom_time=where.oom_times[-1] if where.oom_times else None,
                    host=where.host,
                    exit_status=outcome.exit_status,
                )
        return self._made

    def _is_extreme(self, snapshot: Snapshot, outcome: Outcome) -> bool:
        mine = self._summary(snapshot, outcome)
        if mine is None:
            return False
        path = self.spec.run_dir / EXTREMES
        known = _extremes(path)
        beaten = [
            each for each, sign in (("highest", 1), ("lowest", -1))
            if each not in known or sign * mine.held_bytes > sign * known[each][1]
        ]  # fmt: skip
        if not beaten:
            return False
        before = {rank for rank, _ in known.values()}
        known |= dict.fromkeys(beaten, (mine.rank, mine.held_bytes))
        write_text(path, json.dumps(known))
        for rank in before - {rank for rank, _ in known.values()}:
            self._let_go(rank)
        return True

    def _let_go(self, rank: int) -> None:
        """A snapshot that was kept for being extreme, and is so no more; not one of a rank that failed."""
        from .collecting import read_status

        status = read_status(self.spec.run_dir / f"rank{rank}.status.json")
        if not status.get("out_of_memory") and not status.get("error"):
            (self.spec.run_dir / f"rank{rank}.pickle").unlink(missing_ok=True)


def _extremes(path: Path) -> dict[str, tuple[int, int]]:
    try:
        return {str(key): (int(rank), int(held)) for key, (rank, held) in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def dumps(summary: RankSummary) -> str:
    return json.dumps({"schema": SCHEMA, **asdict(summary)})


def read(path: Path) -> RankSummary:
    """Raises OomdocError where the file is no summary."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        content["sites"] = tuple(content["sites"])
        return RankSummary(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise OomdocError(f"{path} is no rank's summary: {error}") from error
