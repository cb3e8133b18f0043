"""Categories of the live blocks of a bare snapshot, from frames, lifetimes and size multisets."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..interface import Category
from .facts import Facts
from .multisets import Sizes
from .older import judge_older
from .phases import BACKWARD, FORWARD, OPTIMIZER
from .replacement import replaced_parameters
from .rules import RECORDED, Verdict, judge, parameter
from .signs import Sign

UNKNOWN = Verdict(Category.UNKNOWN, 0.0, "no evidence")
# Casts of smaller weights than this are not told apart from casts of activations.
MIN_CAST_WEIGHT_BYTES = 400_000
# One size that is half of a weight's is a coincidence; autocast halves all of them (but embeddings).
CAST_CLASSES = 0.5


def infer(facts: Facts, live: Sequence[int]) -> dict[int, Verdict]:
    """A verdict for each row of `live` (rows of `facts`)."""
    gradients = gradient_sizes(facts)
    older = judge_older(facts, gradients)
    built = _built_parameters(facts)
    built_sizes = Counter(facts.requested[sorted(built)].tolist()) if built else Counter[int]()
    unit: Sizes = gradients or built_sizes or older.unit
    replaced = replaced_parameters(facts, built | _rows_of(older.verdicts, Category.PARAMETER))
    verdicts: dict[int, Verdict] = {}
    for row in live:
        if facts.older[row]:
            verdicts[row] = older.verdicts.get(row, UNKNOWN)
        elif row in replaced:
            verdicts[row] = Verdict(Category.PARAMETER, 0.8, "replaced a parameter in the optimizer's step")
        else:
            verdicts[row] = judge(facts.of(row), RECORDED) or UNKNOWN
    _finish_cut_runs(facts, verdicts, unit)
    _limit_state(facts, verdicts, Counter(unit) | built_sizes | Counter(older.unit))  # several models: the most of each
    _weight_casts(facts, verdicts, built_sizes or unit)
    return verdicts


def _rows_of(verdicts: Mapping[int, Verdict], category: Category) -> set[int]:
    return {row for row, verdict in verdicts.items() if verdict.category is category}


def gradient_sizes(facts: Facts) -> Mapping[int, int]:
    """Sizes of what one backward made and left behind: the parameters' multiset. The run with most bytes counts."""
    survivors = (facts.birth_phase == BACKWARD) & facts.outlives_run & ~facts.run_cut
    survivors &= (facts.signs & (Sign.CUBLAS | Sign.COLLECTIVE | Sign.RECOMPUTE | Sign.TUNING)) == 0
    rows = np.flatnonzero(survivors)
    if not len(rows):
        return {}
    _, index = np.unique(facts.run[rows], return_inverse=True)
    by_run = np.bincount(index, weights=facts.requested[rows])
    best = rows[index == int(np.argmax(by_run))]
    return Counter(facts.requested[best].tolist())


def _built_parameters(facts: Facts) -> set[int]:
    """Recorded blocks that the parameter rule knows, alive or not."""
    named = (facts.signs & (Sign.MODULE_MOVE | Sign.MODULE_INIT | Sign.MODULE_LOAD | Sign.SHARD)) != 0
    found = set()
    for row in np.flatnonzero(named & ~facts.older & (facts.birth_phase != BACKWARD)).tolist():
        verdict = parameter(facts.of(row))
        if verdict is not None and verdict.category is Category.PARAMETER:
            found.add(row)
    return found


def _finish_cut_runs(facts: Facts, verdicts: dict[int, Verdict], unit: Sizes) -> None:
    """The recording ends inside a backward or step (an OOM does that): oldest first, by the parameters' sizes."""
    for phase, category, times in ((BACKWARD, Category.GRADIENT, 1), (OPTIMIZER, Category.OPTIMIZER_STATE, 2)):
        left = {size: times * count for size, count in unit.items()}
        for row, verdict in verdicts.items():
            if verdict.category is category:
                left[int(facts.requested[row])] = left.get(int(facts.requested[row]), 0) - 1
        cut = [r for r, v in verdicts.items() if v is UNKNOWN and facts.run_cut[r] and facts.birth_phase[r] == phase]
        for row in sorted(cut, key=lambda r: int(facts.lives.birth[r])):
            size = int(facts.requested[row])
            if left.get(size, 0) > 0:
                left[size] -= 1
                verdicts[row] = Verdict(category, 0.6, "size of a parameter, the recording ends in this phase")
            elif unit:
                verdicts[row] = Verdict(
                    Category.TEMPORARY, 0.5, "no parameter of its size, the recording ends in this phase"
                )


def _limit_state(facts: Facts, verdicts: dict[int, Verdict], unit: Sizes) -> None:
    """No optimizer keeps more than two moments per parameter: the surplus of hand-written ones are their locals."""
    if not unit:
        return
    by_size: dict[int, list[int]] = {}
    for row, verdict in verdicts.items():
        if verdict.category is Category.OPTIMIZER_STATE:
            by_size.setdefault(int(facts.requested[row]), []).append(row)
    for size, rows in by_size.items():
        if size not in unit:
            continue
        recorded = sorted((r for r in rows if not facts.older[r]), key=lambda r: int(facts.lives.birth[r]))
        surplus = len(rows) - 2 * unit[size]
        for row in recorded[len(recorded) - surplus :] if surplus > 0 else []:
            verdicts[row] = Verdict(Category.TEMPORARY, 0.6, "more than two per parameter of its size")


def _weight_casts(facts: Facts, verdicts: dict[int, Verdict], unit: Sizes) -> None:
    """Autocast keeps a half-size copy of each weight until it ends: at most one per weight and forward."""
    left: dict[tuple[int, int], int] = {}
    native = facts.phases.native_stacks
    if not native and not _most_weights_are_cast(facts, unit):
        return
    rows = [r for r, v in verdicts.items() if v.category is Category.ACTIVATION and not facts.older[r]]
    for row in sorted(rows, key=lambda r: int(facts.lives.birth[r])):
        size = int(facts.requested[row])
        weights = unit.get(2 * size, 0)
        if not weights or 2 * size <= MIN_CAST_WEIGHT_BYTES or facts.birth_phase[row] != FORWARD:
            continue
        cast = bool(facts.signs[row] & Sign.CAST)
        if (native and not cast) or not (facts.outlives_run[row] or facts.free_signs[row] & Sign.AUTOCAST_EXIT):
            continue
        key = (size, int(facts.run[row]))
        if left.setdefault(key, weights) > 0:
            left[key] -= 1
            share, reason = (0.95, "cast of a weight") if cast else (0.7, "half the size of a weight, kept to the end")
            verdicts[row] = Verdict(Category.AUTOCAST_CACHE, share, reason)


def _most_weights_are_cast(facts: Facts, unit: Sizes) -> bool:
    """Without C++ frames: in some forward, half-size blocks as many as the weights, for half of the weight sizes."""
    large = {size: count for size, count in unit.items() if size > MIN_CAST_WEIGHT_BYTES and size % 2 == 0}
    mine = np.flatnonzero((facts.birth_phase == FORWARD) & ~facts.older & facts.outlives_run)
    per_run = Counter(zip(facts.run[mine].tolist(), facts.requested[mine].tolist(), strict=True))
    agreeing: Counter[int] = Counter()
    for (run, half), count in per_run.items():
        if count >= large.get(2 * half, count + 1):
            agreeing[run] += 1
    return bool(large) and max(agreeing.values(), default=0) >= CAST_CLASSES * len(large)
