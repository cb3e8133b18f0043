"""Bytes-weighted accuracy of inferred categories, with the confusion matrices.

Real recordings: true totals per category are known, so what disagrees is spread over the categories that are over.
Virtual recordings: judged with and without their "oomdoc" key, block by block.
"""

import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from oomdoc.diagnosers.attribution.attribute import attribute
from oomdoc.diagnosers.attribution.facts import gather
from oomdoc.diagnosers.interface import Category, Confidence
from oomdoc.diagnosers.profile import build
from oomdoc.snapshots.model import Snapshot
from oomdoc.snapshots.reader import load
from oomdoc.snapshots.timeline import extent

from ..diagnosers.altered import variants
from ..diagnosers.recorded import JOBS, KINDS, KINDS_APART, OF_THE_RECORDERS, record

# By what a recording has. A late one knows blocks that are older by their sizes alone: whether those are a cache, what
# was loaded, or weights, no size tells; and little is left of a job that is recorded from its last backward on.
LEAST = (("no frames", 0.8), ("late", 0.93), ("ring", 0.94), ("", 0.96))
Cells = Counter[tuple[str, str]]  # (true, found) -> bytes
# Jobs whose categories no bare recording can tell: one tensor copied by a builtin without a Python frame, gradients in
# no `.grad` (they are nobody's) or of parameters that no module owns (nobody told the recorder), inputs and outputs
# that a list or a kept graph holds, moments that no optimizer holds, what a script itself works out under no_grad.
NOT_TOLD = {
    "data_on_gpu",
    "stashed_gradients",
    "metric_list",
    "validation_loss",
    "hidden_state",
    "healthy_functional",
    "healthy_own_momentum",
    "healthy_lbfgs",
    "manual_sgd",
    "all_cameras",
    "cam_lists",
    "dpo_pairs",
    "metric_states",
    "metric_with_graph",
    "sample_gradients",
}


def accuracy(cells: Cells) -> float:
    return sum(n for (true, found), n in cells.items() if true == found) / sum(cells.values())


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


def show(title: str, cells: Cells) -> None:
    names = [c.value for c in Category if any(c.value in pair for pair in cells)]
    total = sum(cells.values())
    unknown = sum(n for (_, found), n in cells.items() if found == Category.UNKNOWN.value)
    say(
        f"\n{title}: {accuracy(cells):.4f} of {total / 2**30:.1f} GiB right, {unknown / total:.4f} left unknown; MiB,"
        " rows true, columns found"
    )
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


def judged(whole: Snapshot, bare: Snapshot, begins: int) -> Cells:
    """Block by block at the peak of `bare`; of blocks without a stack only the number per size and category counts.

    What the recording itself does not know for certain is no truth, and is left out.
    """
    device = bare.devices[0]
    event = extent(device).peak_event
    facts = gather(whole, whole.devices[0])
    true: dict[tuple[int, int], Category | None] = {}
    for each in attribute(whole, whole.devices[0], begins + event, facts):
        birth = int(facts.lives.birth[each.row]) - begins
        certain = each.confidence is Confidence.EXACT or each.category is Category.KV_CACHE  # told by its frames only
        true[int(facts.lives.address[each.row]), max(birth, -1)] = each.category if certain else None
    facts = gather(bare, device)
    cells: Cells = Counter()
    alike: dict[int, tuple[list[Category], list[Category]]] = defaultdict(lambda: ([], []))
    for each in attribute(bare, device, event, facts):
        birth, size = int(facts.lives.birth[each.row]), int(facts.requested[each.row])
        category = true[int(facts.lives.address[each.row]), birth]
        if birth < 0 and facts.lives.alloc_stack[each.row] < 0:
            alike[size][0].extend([category] if category is not None else [])
            alike[size][1].append(each.category)
        elif category is not None:
            cells[category.value, each.category.value] += size
    for size, (mine, found) in alike.items():
        agreed = Counter(mine) & Counter(found)
        cells.update({(c.value, c.value): size * n for c, n in agreed.items()})
        missed = (Counter(mine) - agreed).elements()
        for pair in zip(missed, (Counter(found) - agreed).elements(), strict=False):  # of some the truth is not known
            cells[pair[0].value, pair[1].value] += size
    return cells


def test_real_recordings(shared: Path) -> None:
    total: Cells = Counter()
    for cells in real(shared):
        total += cells
    show("real recordings", total)
    assert accuracy(total) >= 0.95


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py"))


# Jobs of the cases; other kinds; and those that nobody looked at while the rules were written.
SETS = {
    "cases": [*names(JOBS), *OF_THE_RECORDERS],
    "other kinds": names(KINDS),
    "kept apart": names(KINDS_APART),
}


@pytest.mark.slow
@pytest.mark.parametrize("jobs", SETS)
def test_virtual_recordings_without_their_key(jobs: str) -> None:
    """As a GPU would have recorded them: from the start, from the middle, through a ring, without frames."""
    told: dict[str, Cells] = defaultdict(Counter)
    every: Cells = Counter()
    for script in SETS[jobs]:
        whole = record(script, 80 << 10)
        if len(whole.devices[0].trace) == 0:
            continue
        for name, bare, begins in variants(whole):
            cells = judged(whole, bare, begins)
            if name == "whole, Python frames":
                every += cells
            if script not in NOT_TOLD:
                told[name] += cells
    for name, cells in told.items():
        show(f"virtual recordings, {jobs}: {name}", cells)
    show("the first of these with those jobs that no bare recording can tell", every)
    for name, cells in told.items():
        assert accuracy(cells) >= next(least for part, least in LEAST if part in name), name
