"""Blocks older than the recording have size and address, rarely a stack: judged by what drops them, then by sizes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Action
from ..interface import Category
from .facts import Facts, older_in_flight
from .gradients import alive_at_once
from .multisets import Copies, bytes_of, common_factor, copies_of, deal, most_moments, name_copies, split_copies, wanted
from .phases import BACKWARD, FORWARD, OPTIMIZER, OTHER, run_starts
from .pieces import buckets, flattened
from .rules import (
    DROPPED_BY_PYTHON,
    FREED_BY_BACKWARD,
    HOPPER_WORKSPACE_BYTES,
    IN_BUCKETS,
    OLDER,
    RECORDED,
    Verdict,
    judge,
)
from .signs import Sign

# A size class is an old graph rather than parameters when the recorded forward keeps at least this share as many
# blocks of it alive at once.
OLD_GRAPH_SHARE = 0.6
HALF = 0.5
# Of the bytes in DDP's buckets: fewer gradients beside them are of other tensors, and those of the model are views.
FEW_GRADIENTS = 0.1
# Of the blocks that a forward saves, those that it was given.
FEW_INPUTS = 0.1
# What an evaluation makes in a forward is gone after so many more, unless something keeps it.
MANY_FORWARDS = 3
# Fewer blocks of one size than this are not "repeated by layer".
REPEATED_BLOCKS = 3
# Fewer blocks that are dropped at once may be anything.
MIN_GRAPH_BLOCKS = 20
# What so many recorded rounds left behind, earlier ones left too, before it is anything of the parameters' sizes.
MIN_ROUNDS_LEFT = 3


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
    if not facts.phases.told_by_stacks:
        _dropped_graph(facts, [r for r in rows.tolist() if r not in verdicts], verdicts)
    _inputs(facts, [r for r, v in verdicts.items() if v.reason == FREED_BY_BACKWARD], verdicts)
    _twins(facts, [r for r, v in verdicts.items() if v.reason == DROPPED_BY_PYTHON], verdicts)
    _hopper_workspace(facts, rows, verdicts)
    _buckets(facts, [row for row in rows.tolist() if row not in verdicts], verdicts, gradients)
    _left_behind(facts, [row for row in rows.tolist() if row not in verdicts], verdicts, MIN_ROUNDS_LEFT)
    persistent = [row for row in rows.tolist() if row not in verdicts]
    unit, copies, masters = _unit(facts, persistent, verdicts, gradients)
    _flattened(facts, persistent, verdicts, unit, copies)
    persistent = [row for row in persistent if row not in verdicts]
    _deal_classes(facts, persistent, verdicts, unit, copies, masters)
    return OlderBlocks(verdicts=verdicts, unit=unit, copies=copies)


def _dropped_graph(facts: Facts, rows: list[int], verdicts: dict[int, Verdict]) -> None:
    """Without a stack, in a recording of forwards alone: what falls at once, of sizes that a forward makes again."""
    if np.isin(facts.phases.phase, (BACKWARD, OPTIMIZER)).any():
        return  # there gradients fall so too
    freed = sorted((r for r in rows if not facts.never_freed[r]), key=lambda r: int(facts.lives.free_requested[r]))
    made = np.cumsum(facts.trace.action == Action.ALLOC)
    number = made[facts.lives.free_requested[freed]] if freed else made[:0]
    again = set(facts.requested[facts.birth_phase == FORWARD].tolist())
    for each in np.unique(number).tolist():
        clump = [row for row, mine in zip(freed, number.tolist(), strict=True) if mine == each]
        sizes = _sizes(facts, clump)
        known = sum(size * count for size, count in sizes.items() if size in again)
        if len(clump) >= MIN_GRAPH_BLOCKS and known >= HALF * bytes_of(sizes):
            for row in clump:
                verdicts[row] = Verdict(
                    Category.ACTIVATION, 0.5, "older than the recording, dropped at once with others"
                )


def _twins(facts: Facts, rows: list[int], verdicts: dict[int, Verdict]) -> None:
    """What a line makes and drops in every round is of one kind: recorded blocks of the same size tell which.

    The line that takes the next batch drops the last one, whatever it calls to make them.
    """
    place = facts.places[facts.lives.free_stack]
    told = {(int(place[row]), int(facts.requested[row])): Counter[Category]() for row in rows if place[row] >= 0}
    if not told:
        return
    for row in np.flatnonzero(~facts.older & np.isin(facts.requested, [size for _, size in told])).tolist():
        at = int(facts.places[facts.lives.alloc_stack[row]])
        keys = {(int(place[row]), int(facts.requested[row]))}
        while at >= 0:
            keys.add((at, int(facts.requested[row])))
            at = int(facts.calling[at])
        mine = keys & told.keys()
        found = judge(facts.of(row), RECORDED) if mine else None
        if found is not None:
            for key in mine:
                told[key][found.category] += 1
    for row in rows:
        votes = told.get((int(place[row]), int(facts.requested[row])), Counter[Category]()).most_common(1)
        if votes and votes[0][0] is not Category.ACTIVATION:
            verdicts[row] = Verdict(votes[0][0], 0.5, "dropped by the line that makes or drops such blocks every round")


def _inputs(facts: Facts, rows: list[int], verdicts: dict[int, Verdict]) -> None:
    """What backward frees is the graph of its forward, and that begins with the inputs.

    Where the recording has the whole of that forward, older blocks in its graph are few, and no activations. Else as
    many of a size as later rounds make for each forward: they are the last that backward frees.
    """
    starts = run_starts(facts.phases, BACKWARD)
    if not rows or not len(starts):
        return
    lives, first = facts.lives, int(starts[0])
    saved = ~facts.older & (facts.birth_phase == FORWARD) & (lives.birth < first) & (facts.death_phase == BACKWARD)
    if len(rows) <= max(1, int(FEW_INPUTS * (saved & ~facts.never_freed).sum())) < (saved & ~facts.never_freed).sum():
        inputs = rows
    else:
        given = (facts.birth_phase == OTHER) & ~facts.older & facts.before_forward & ~facts.after_forward
        given &= facts.feeds_forward | (~facts.never_freed & (facts.death_phase == BACKWARD))
        made = np.flatnonzero(given & np.isin(facts.requested, facts.requested[rows]))
        rounds = np.searchsorted(starts, lives.birth[made]).tolist()
        most: dict[int, int] = {}
        for (size, _), number in Counter(zip(facts.requested[made].tolist(), rounds, strict=True)).items():
            most[size] = max(most.get(size, 0), number)
        inputs = []
        for row in sorted(rows, key=lambda r: -int(lives.free_requested[r])):
            if most.get(int(facts.requested[row]), 0) > 0:
                most[int(facts.requested[row])] -= 1
                inputs.append(row)
    for row in inputs:
        verdicts[row] = Verdict(Category.INPUT, 0.5, "older than the forward whose graph holds it")


def _hopper_workspace(facts: Facts, rows: NDArray[np.int64], verdicts: dict[int, Verdict]) -> None:
    """33,554,432 B is a common size; a workspace is one block per thread and never freed."""
    mine = [r for r in rows.tolist() if facts.requested[r] == HOPPER_WORKSPACE_BYTES and r not in verdicts]
    if 0 < len(mine) <= 2:
        for row in mine:
            verdicts[row] = Verdict(Category.WORKSPACE, 0.5, "size of the cuBLAS workspace on Hopper, never freed")


def _buckets(facts: Facts, rows: list[int], verdicts: dict[int, Verdict], gradients: Mapping[int, int]) -> None:
    """DDP's hold every gradient once more; or for good, as views, and then no backward leaves any."""
    moments = most_moments(facts.optimizers)
    if not facts.replicated or not moments:
        return
    found = buckets(_sizes(facts, rows), 1 + moments)
    mine = [row for row in rows if int(facts.requested[row]) in found]
    views = bytes_of(gradients) < FEW_GRADIENTS * int(facts.requested[mine].sum()) if mine else False
    for row in mine:
        verdicts[row] = (
            Verdict(Category.GRADIENT, 0.6, IN_BUCKETS)
            if views
            else Verdict(Category.COMMUNICATION, 0.6, "as many bytes as the parameters, in buckets")
        )


def _flattened(
    facts: Facts, rows: list[int], verdicts: dict[int, Verdict], unit: Mapping[int, int], copies: Copies
) -> None:
    """Parameters in one buffer whose state is in pieces, where the bytes say so exactly."""
    found = flattened(unit, _sizes(facts, rows), sum(times for _, times in copies.order))
    if found is None:
        return
    for row in rows:
        for category, sizes in ((Category.PARAMETER, found.together), (Category.OPTIMIZER_STATE, found.apart)):
            if int(facts.requested[row]) in sizes:
                verdicts[row] = Verdict(category, 0.6, "in other pieces than the parameters, of the same bytes")


def _sizes(facts: Facts, rows: list[int]) -> Counter[int]:
    return Counter(facts.requested[rows].tolist()) if rows else Counter()


def _unit(
    facts: Facts, persistent: list[int], verdicts: Mapping[int, Verdict], gradients: Mapping[int, int]
) -> tuple[Mapping[int, int], Copies, Copies]:
    """The parameters' sizes, and what their copies are: of the same size, and of twice the size."""
    phase, nothing = facts.phases.phase, Copies((), 0.0)
    if not np.isin(phase, (FORWARD, BACKWARD, OPTIMIZER)).any():
        return {}, nothing, nothing  # four projections per layer count like four copies: sizes alone mislead
    explained = {
        kind: [row for row, verdict in verdicts.items() if verdict.category is kind and facts.older[row]]
        for kind in (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    }
    explained[Category.GRADIENT] = [r for r in explained[Category.GRADIENT] if verdicts[r].reason != IN_BUCKETS]
    left = [row for kind in (Category.PARAMETER, Category.OPTIMIZER_STATE) for row in explained[kind]]
    ever = _sizes(facts, persistent + left)
    step_seen = bool((phase == OPTIMIZER).any())
    backward_seen = bool((phase == BACKWARD).any())
    freed_gradients = bytes_of(_sizes(facts, explained[Category.GRADIENT]))
    moments = most_moments(facts.optimizers)
    same_sizes = copies_of(gradients, ever)
    copies = same_sizes or split_copies(ever, bytes_of(gradients))
    if copies:
        # what zero_grad dropped is not among them, and what a backward made anew was not there before
        named = name_copies(copies, gradients_there=False, step_seen=step_seen, moments=moments)
        if same_sizes:
            return gradients, named, _masters(gradients, ever, copies, moments)
        return {size: count // copies for size, count in ever.items() if count % copies == 0}, named, nothing
    ever += _sizes(facts, explained[Category.GRADIENT])
    kept = _without_old_graph(facts, ever, persistent, _sizes(facts, explained[Category.GRADIENT]))
    factor = common_factor(kept, (4, 3, 2) if step_seen or backward_seen else (4, 3))
    unit = {size: count // factor for size, count in kept.items() if count % factor == 0}
    if factor == 1:
        if not (phase == FORWARD).any():
            return {}, nothing, nothing
        return unit, Copies(((Category.PARAMETER, 1),), 0.7), nothing
    there_or_not: bool | None = None
    if any(verdict.reason == IN_BUCKETS for verdict in verdicts.values()):
        there_or_not = False
    elif freed_gradients >= HALF * bytes_of(unit) or backward_seen:
        there_or_not = True  # a backward that left nothing added to gradients that were there
    elif explained[Category.OPTIMIZER_STATE] and factor == 3:
        there_or_not = bytes_of(_sizes(facts, explained[Category.OPTIMIZER_STATE])) < 1.5 * bytes_of(unit)
    return unit, name_copies(factor, gradients_there=there_or_not, step_seen=step_seen, moments=moments), nothing


def _masters(unit: Mapping[int, int], ever: Mapping[int, int], copies: int, moments: int | None) -> Copies:
    """Half-precision weights whose optimizer keeps fp32: their masters and moments have twice the size."""
    doubled: Counter[int] = Counter()
    for size, count in unit.items():
        doubled[2 * size] += count
    left = {size: ever.get(size, 0) - copies * unit.get(size, 0) for size in doubled}
    number = copies_of(doubled, left)
    agreeing = sum(left[size] == number * count for size, count in doubled.items())
    if number > 1 + (2 if moments is None else moments) or 2 * agreeing < len(doubled):
        return Copies((), 0.0)  # some other thing's sizes
    state = min(number, 2 if moments is None else moments)
    order = ((Category.OPTIMIZER_STATE, state), (Category.PARAMETER, number - state))
    return Copies(tuple(each for each in order if each[1] > 0), 0.6)


def _without_old_graph(
    facts: Facts, blocks: Counter[int], persistent: list[int], certain: Counter[int]
) -> Counter[int]:
    """Without the classes of which the recorded forward keeps about as many blocks alive at once.

    A graph is dropped when the next one takes its name: what stays beyond the next backward is no old graph.
    """
    staying = _sizes(facts, [row for row in persistent if facts.never_freed[row] and facts.rounds[row] >= 1])
    kept: Counter[int] = Counter()
    for size, count in blocks.items():
        stays = 2 * staying[size] > count
        if size in certain or count == 1 or stays or _alive_at_once(facts, size) < OLD_GRAPH_SHARE * count:
            kept[size] = count
    return kept


def _alive_at_once(facts: Facts, size: int) -> int:
    """How many blocks of this size that a recorded forward made are alive together, at most."""
    mine = (facts.requested == size) & (facts.birth_phase == FORWARD) & ~facts.older
    return alive_at_once(facts, np.flatnonzero(mine))


def _deal_classes(
    facts: Facts,
    persistent: list[int],
    verdicts: dict[int, Verdict],
    unit: Mapping[int, int],
    copies: Copies,
    masters: Copies,
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
        mine = wanted(unit.get(size, 0), copies) + wanted(unit.get(size // 2, 0) if size % 2 == 0 else 0, masters)
        if any(number for _, number in mine):
            share, reason = copies.share, f"size multiset x{total}"
            if size not in unit:
                share, reason = masters.share, "twice the size of a parameter: fp32 masters and moments"
            for row, category in zip(rows, deal(len(rows), mine, explained.get(size, {})), strict=True):
                if category is not Category.UNKNOWN:
                    verdicts[row] = Verdict(category, share, reason)
        elif size in casts and 2 * size in unit:
            for row in rows[: unit[2 * size]]:
                verdicts[row] = Verdict(Category.AUTOCAST_CACHE, 0.6, "size of this recording's weight casts")
    _left_behind(facts, [row for row in persistent if row not in verdicts], verdicts)
    if copies.order:
        _frozen(facts, [row for row in persistent if row not in verdicts], unit, verdicts)


def _left_behind(facts: Facts, rows: list[int], verdicts: dict[int, Verdict], least: int = 0) -> None:
    """A leak is older than the recording too: what the recorded rounds leave behind tells what earlier ones left.

    `least`: of how many of them something must stay for good.
    """
    votes: dict[int, Counter[Category]] = {}
    rounds: dict[int, set[int]] = {}
    for row in _leftovers(facts, rows):
        if facts.never_freed[row]:
            rounds.setdefault(int(facts.requested[row]), set()).add(int(facts.backwards[facts.lives.birth[row]]))
        found = judge(facts.of(row), RECORDED)
        category = Category.UNKNOWN if found is None else found.category
        votes.setdefault(int(facts.requested[row]), Counter())[category] += 1
    for row in rows:
        told = votes.get(int(facts.requested[row]))
        many = len(rounds.get(int(facts.requested[row]), ())) >= least
        if told and many and told.most_common(1)[0][0] is not Category.UNKNOWN:
            verdicts[row] = Verdict(told.most_common(1)[0][0], 0.5, "of a size that every recorded round leaves behind")


def _leftovers(facts: Facts, rows: list[int]) -> list[int]:
    """Recorded blocks of the sizes of `rows` that outlive their round: its backward, or several forwards without."""
    forwards = run_starts(facts.phases, FORWARD)
    lasted = np.searchsorted(forwards, facts.lives.death) - np.searchsorted(forwards, facts.lives.birth, side="right")
    evaluated = (facts.birth_phase == FORWARD) & ~facts.meets_backward & (lasted >= MANY_FORWARDS)
    kept = (facts.never_freed & (facts.rounds >= 1)) | (facts.rounds >= 2) | evaluated
    kept &= ~facts.older & (facts.birth_phase != BACKWARD)
    kept &= (facts.birth_phase != OPTIMIZER) & np.isin(facts.requested, facts.requested[rows])
    found: list[int] = np.flatnonzero(kept).tolist()
    return found


def _cast_sizes(facts: Facts) -> set[int]:
    mine = ~facts.older & ((facts.signs & Sign.CAST) != 0)
    return set(facts.requested[mine].tolist())


def _frozen(facts: Facts, rows: list[int], unit: Mapping[int, int], verdicts: dict[int, Verdict]) -> None:
    """Weights without gradients (LoRA's base model) repeat by layer and outlive a whole recorded iteration.

    Its embedding and its head occur once: whole numbers of the width that the model's norms repeat by layer.
    """
    phase = facts.phases.phase
    if not ((phase == FORWARD).any() and (phase == BACKWARD).any()):
        return
    classes = _sizes(facts, rows)
    repeated = {size for size, count in classes.items() if count >= REPEATED_BLOCKS}
    left = _without_old_graph(facts, Counter({size: classes[size] for size in repeated}), rows, Counter())
    width = min(left, default=0) if bytes_of(left) > bytes_of(unit) else 0
    for row in rows:
        size = int(facts.requested[row])
        if size in left:
            verdicts[row] = Verdict(Category.PARAMETER, 0.5, "persistent, repeated by layer, no gradient of its size")
        elif width > 1 and size > max(left) and size % width == 0 and facts.rounds[row] >= 1:
            verdicts[row] = Verdict(Category.PARAMETER, 0.4, "persistent, rows of a frozen model's width")
