"""Bytes-weighted accuracy of inferred categories, with the confusion matrices.

Real recordings: true totals per category are known, so what disagrees is spread over the categories that are over.
Virtual recordings: judged with and without their "oomdoc" key, block by block.
"""

import csv
import runpy
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oomdoc.diagnosers.interface import Category
from oomdoc.diagnosers.profile import build
from oomdoc.recorders.virtual.device import GpuTarget
from oomdoc.recorders.virtual.session import virtual_session
from oomdoc.snapshots.model import Snapshot
from oomdoc.snapshots.reader import load

ROOT = Path(__file__).resolve().parents[2]
CARD = GpuTarget(
    name="bench",
    total_bytes=80 << 30,
    context_bytes=500 << 20,
    sm_count=108,
    threads_per_sm=2048,
    compute_capability=(8, 0),
)
Cells = Counter[tuple[str, str]]  # (true, found) -> bytes
# Jobs whose categories no bare recording can tell: one tensor copied by a builtin without a Python frame, gradients in
# no `.grad`, inputs and outputs that a list or a kept graph holds.
NOT_TOLD = {"data_on_gpu", "stashed_gradients", "metric_list", "validation_loss", "hidden_state"}


def accuracy(cells: Cells) -> float:
    return sum(n for (true, found), n in cells.items() if true == found) / sum(cells.values())


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def show(title: str, cells: Cells) -> None:
    names = [c.value for c in Category if any(c.value in pair for pair in cells)]
    say(f"\n{title}: {accuracy(cells):.4f} of {sum(cells.values()) / 2**30:.1f} GiB; MiB, rows true, columns found")
    say(f"{'':16}" + "".join(f"{name[:10]:>11}" for name in names) + f"{'recall':>9}")
    for true in names:
        row = [cells[true, found] for found in names]
        if sum(row):
            cellsum = "".join(f"{n / 2**20:>11.1f}" if n else f"{'.':>11}" for n in row)
            say(f"{true:16}{cellsum}{cells[true, true] / sum(row):>9.3f}")


def real(folder: Path) -> Iterator[Cells]:
    truth: dict[str, dict[str, int]] = defaultdict(dict)
    with (folder / "data" / "attribution_truth.csv").open() as stream:
        for row in csv.DictReader(stream):
            truth[row["name"]][row["category"]] = int(row["bytes"])
    for name, true in truth.items():
        profile = build([load(folder / "data" / "snapshots" / name)]).devices[0]
        found = {category.value: held.bytes for category, held in profile.categories.items()}
        yield spread(true, found)


def spread(true: dict[str, int], found: dict[str, int]) -> Cells:
    cells: Cells = Counter({(c, c): n for c in true if (n := min(true[c], found.get(c, 0)))})
    short = {c: n for c in true if (n := true[c] - found.get(c, 0)) > 0}
    over = {c: n for c in found if (n := found[c] - true.get(c, 0)) > 0}
    for missed, lost in short.items():
        for claimed, gained in over.items():
            cells[missed, claimed] += round(lost * gained / sum(over.values()))
    return cells


def virtual(script: Path) -> Snapshot:
    with virtual_session(CARD) as session:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except torch.OutOfMemoryError:
            return session.snapshot()
        return session.snapshot()


def stripped(snapshot: Snapshot) -> Cells:
    exact = build([snapshot]).devices[0]
    bare = build([replace(snapshot, recording=None)]).devices[0]
    found = {(block.address, block.birth): block.category.value for block in bare.live}
    cells: Cells = Counter()
    for block in exact.live:
        if block.category is not Category.UNKNOWN:
            cells[block.category.value, found[block.address, block.birth]] += block.requested_bytes
    return cells


def test_real_recordings(shared: Path) -> None:
    total: Cells = Counter()
    for cells in real(shared):
        total += cells
    show("real recordings", total)
    assert accuracy(total) >= 0.95


@pytest.mark.slow
def test_virtual_recordings_without_their_key() -> None:
    told: Cells = Counter()
    every: Cells = Counter()
    for script in sorted((ROOT / "tests" / "diagnosers" / "jobs").glob("*.py")):
        cells = stripped(virtual(script))
        every += cells
        if script.stem not in NOT_TOLD:
            told += cells
    show("virtual recordings without their key", told)
    show("the same with those that no bare recording can tell", every)
    assert accuracy(told) >= 0.97
