"""The estimates of the five card remedies against a run with the change on the virtual GPU.

`bare`: from the recording as PyTorch writes it. `recorded`: from the same one with what oomdoc notes beside it. The
models are in tests/remedies/predicted.py; those held out were added after the estimates were last changed.
Recordings are kept in build/recordings, so that a run that was stopped goes on; `--fresh` makes them anew.
"""

import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import median

from page import MIB, ROOT, made, table

sys.path.insert(0, str(ROOT / "tests" / "remedies"))
from predicted import CARD, HELD_OUT, JOBS, Pair, pairs
from recordings import Recordings

FOLDER = ROOT / "build" / "recordings"
AT_ONCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One (model, setting); `bare` and `recorded` are relative errors of the expected peak."""

    job: str
    remedy: str
    options: str
    verified_bytes: int
    bare: float
    recorded: float
    in_band: bool  # of the bare estimate

    @property
    def held_out(self) -> bool:
        return self.job in HELD_OUT


def rows(*, fresh: bool = False) -> list[Row]:
    """Every pair, two models at a time, with a line to stderr for each model."""
    if fresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
    start, found = time.monotonic(), {}
    with ProcessPoolExecutor(AT_ONCE) as pool:
        waiting = {pool.submit(_of_job, job): job for job in JOBS}
        for done in as_completed(waiting):
            job = waiting[done]
            found[job] = done.result()
            said = f"{len(found)}/{len(JOBS)} {job}: {len(found[job])} pairs, {time.monotonic() - start:.0f} s"
            print(said, file=sys.stderr, flush=True)  # noqa: T201
    return [row for job in JOBS for row in found[job]]


def _of_job(job: str) -> list[Row]:
    return [_row(pair) for pair in pairs(Recordings(FOLDER), job)]


def _row(pair: Pair) -> Row:
    options = [f"{k}={v}" for k, v in pair.setting.options.items() if k not in ("modules", "wrap")]
    band = pair.bare.predicted_peak_bytes
    return Row(
        job=pair.job,
        remedy=pair.setting.name,
        options=" ".join(options).replace("'", ""),
        verified_bytes=pair.verified,
        bare=pair.error(pair.bare),
        recorded=pair.error(pair.told),
        in_band=band.low <= pair.verified <= band.high,
    )


def section(found: Sequence[Row]) -> str:
    head = ("remedy", "pairs", "bare: median", "worst", "in the band", "recorded: median", "worst", "within 1 %")
    parts = [made(), table(head, list(_totals(found)))]
    every = ("model", "remedy", "setting", "verified MiB", "bare", "recorded")
    lines = [
        (
            row.job + (" (held out)" if row.held_out else ""),
            row.remedy,
            row.options,
            f"{row.verified_bytes / MIB:.1f}",
            f"{row.bare:+.1%}",
            f"{row.recorded:+.1%}",
        )
        for row in found
    ]
    return "\n\n".join([*parts, table(every, lines, text_columns=3)])


def _totals(found: Sequence[Row]) -> Iterator[tuple[object, ...]]:
    of_remedy: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        of_remedy[row.remedy].append(row)
    held_out = [row for row in found if row.held_out]
    for name, each in [*((name, of_remedy[name]) for name in CARD), ("held out, all remedies", held_out)]:
        if each:
            bare, recorded = ([abs(getattr(row, kind)) for row in each] for kind in ("bare", "recorded"))
            inside = sum(row.in_band for row in each)
            near = sum(error <= 0.01 for error in recorded)
            yield (
                name, len(each), f"{median(bare):.1%}", f"{max(bare):.1%}", inside, f"{median(recorded):.1%}",
                f"{max(recorded):.1%}", near,
            )  # fmt: skip


def summary(found: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By remedy: pairs, and the median and the worst error of both kinds."""
    result = {}
    for name in CARD:
        each = [row for row in found if row.remedy == name]
        bare, recorded = ([abs(getattr(row, kind)) for row in each] for kind in ("bare", "recorded"))
        result[name] = {
            "pairs": len(each),
            "bare": median(bare),
            "bare worst": max(bare),
            "recorded": median(recorded),
            "recorded worst": max(recorded),
        }
    return result
