"""Blocks older than the recording have size and address, rarely a stack: judged by what drops them, then by sizes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..interface import Category
from .facts import Facts, older_in_flight
from .multisets import Copies, bytes_of, common_factor, copies_of, deal, name_copies
from .phases import BACKWARD, FORWARD, OPTIMIZER
from .rules import HOPPER_WORKSPACE_BYTES, OLDER, Verdict, judge
from .signs import Sign

# A size class is an old graph rather than parameters when the recorded forward keeps at least this share as many
# blocks of it alive at once.
OLD_GRAPH_SHARE = 0.6
HALF = 0.5
# Fewer blocks of one size than this are not "repeated by layer".
REPEATED_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderBlocks:
    verdicts: Mapping[int, Verdict]  # by row
    unit: Mapping[int, int]  # the parameters' size multiset, empty where it is not known
    copies: Copies


def judge_older(facts: Facts, gradients: Mapping[int, int]) -> OlderBlocks:
    """`gradients`: sizes of the gradients that one recorded backward made, empty where there is none."""
    rows = np.flatnonzero(facts.older)
    verdicts: dict[int, Verdict] = {}
    in_flight = older_in_flight(facts)
    for row in rows.tolist():
        if in_flight[row]:
            verdicts[row] = Verdict(Category.TEMPORARY, 0.6, "freed within the first events of the recording")
            continue
        found = judge(facts.of(row), OLDER)
        if found is not None:
            verdicts[row] = found
    _hopper_workspace(facts, rows, verdicts)
    persistent = [row for row in rows.tolist() if row not in verdicts]
    unit, copies = _unit(facts, persistent, verdicts, gradients)
    _deal_classes(facts, persistent, verdicts, unit, copies)
    return OlderBlocks(verdicts=verdicts, unit=unit, copies=copies)


def _hopper_workspace(facts: Facts, rows: NDArray[np.int64], verdicts: dict[int, Verdict]) -> None:
    """33,554,432 B is a common size; a workspace is one block per thread and never freed."""
    mine = [r for r in rows.tolist() if facts.requested[r] == HOPPER_WORKSPACE_BYTES and r not in verdicts]
    if 0 < len(mine) <= 2:
        for row in mine:
            verdicts[row] = Verdict(Category.WORKSPACE, 0.5, "size of the cuBLAS workspace on Hopper, never freed")


def _sizes(facts: Facts, rows: list[int]) -> Counter[int]:
    return Counter(facts.requested[rows].tolist()) if rows else Counter()


def _unit(
    facts: Facts, persistent: list[int], verdicts: Mapping[int, Verdict], gradients: Mapping[int, int]
) -> tuple[Mapping[int, int], Copies]:
    phase = facts.phases.phase
    if not np.isin(phase, (FORWARD, BACKWARD, OPTIMIZER)).any():
        return {}, Copies((), 0.0)  # four projections per layer count like four copies: sizes alone mislead
    explained = {
        kind: [row for row, verdict in verdicts.items() if verdict.category is kind and facts.older[row]]
        for kind in (Category.GRADIENT, Category.OPTIMIZER_STATE)
    }
    ever = _sizes(facts, persistent + explained[Category.GRADIENT] + explained[Category.OPTIMIZER_STATE])
    step_seen = bool((phase == OPTIMIZER).any())
    backward_seen = bool((phase == BACKWARD).any())
    freed_gradients = bytes_of(_sizes(facts, explained[Category.GRADIENT]))
    if gradients:
        copies = copies_of(gradients, ever)
        there = freed_gradients >= HALF * bytes_of(gradients)
        return gradients, name_copies(copies, gradients_there=there, step_seen=step_seen)
    kept = _without_old_graph(facts, ever, _sizes(facts, explained[Category.GRADIENT]))
    factor = common_factor(kept, (4, 3, 2) if step_seen or backward_seen else (4, 3))
    unit = {size: count // factor for size, count in kept.items() if count % factor == 0}
    if factor == 1:
        if not (phase == FORWARD).any():
            return {}, Copies((), 0.0)
        return unit, Copies(((Category.PARAMETER, 1),), 0.7)
    there_or_not: bool | None = None
    if freed_gradients >= HALF * bytes_of(unit) or backward_seen:
        there_or_not = True  # a backward that left nothing added to gradients that were there
    elif explained[Category.OPTIMIZER_STATE] and factor == 3:
        there_or_not = bytes_of(_sizes(facts, explained[Category.OPTIMIZER_STATE])) < 1.5 * bytes_of(unit)
    return unit, name_copies(factor, gradients_there=there_or_not, step_seen=step_seen)


def _without_old_graph(facts: Facts, blocks: Counter[int], certain: Counter[int]) -> Counter[int]:
    """Without the classes of which the recorded forward keeps about as many blocks alive at once."""
    kept: Counter[int] = Counter()
    for size, count in blocks.items():
        if size in certain or count == 1 or _alive_at_once(facts, size) < OLD_GRAPH_SHARE * count:
            kept[size] = count
    return kept


def _alive_at_once(facts: Facts, size: int) -> int:
    """How many blocks of this size that a recorded forward made are alive together, at most."""
    mine = (facts.requested == size) & (facts.birth_phase == FORWARD) & ~facts.older
    if not mine.any():
        return 0
    births = np.sort(facts.lives.birth[mine])
    deaths = np.sort(facts.lives.death[mine])
    alive = np.arange(1, len(births) + 1) - np.searchsorted(deaths, births, side="left")
    return int(alive.max())


def _deal_classes(
    facts: Facts,
    persistent: list[int],
    verdicts: dict[int, Verdict],
    unit: Mapping[int, int],
    copies: Copies,
) -> None:
    by_size: dict[int, list[int]] = {}
    for row in sorted(persistent, key=lambda r: int(facts.lives.address[r])):
        by_size.setdefault(int(facts.requested[row]), []).append(row)
    explained: dict[int, Counter[Category]] = {}
    for row, verdict in verdicts.items():
        explained.setdefault(int(facts.requested[row]), Counter())[verdict.category] += 1
    total = sum(times for _, times in copies.order)
    casts = _cast_sizes(facts)
    for size, rows in by_size.items():
        if size in unit:
            reason = f"size multiset x{total}"
            dealt = deal(len(rows), unit[size], copies, explained.get(size, {}))
            for row, category in zip(rows, dealt, strict=True):
                if category is not Category.UNKNOWN:
                    verdicts[row] = Verdict(category, copies.share, reason)
        elif size in casts and 2 * size in unit:
            for row in rows[: unit[2 * size]]:
                verdicts[row] = Verdict(Category.AUTOCAST_CACHE, 0.6, "size of this recording's weight casts")
        elif copies.order and _frozen(facts, size, len(rows)):
            for row in rows:
                verdicts[row] = Verdict(
                    Category.PARAMETER, 0.5, "persistent, repeated by layer, no gradient of its size"
                )


def _cast_sizes(facts: Facts) -> set[int]:
    mine = ~facts.older & ((facts.signs & Sign.CAST) != 0)
    return set(facts.requested[mine].tolist())


def _frozen(facts: Facts, size: int, count: int) -> bool:
    """Weights without gradients (LoRA's base model) repeat by layer and outlive a whole recorded iteration."""
    phase = facts.phases.phase
    iteration = (phase == FORWARD).any() and (phase == BACKWARD).any()
    return bool(iteration) and count >= REPEATED_BLOCKS and _alive_at_once(facts, size) < OLD_GRAPH_SHARE * count
