"""Phases of a recording without a single stack, from the shape of its memory.

A forward piles up what its backward needs, and the backward drops it in reverse order. So the moment at which most of
an iteration's own bytes are alive is the turn from one to the other. What was made before the first of the pile is
the model; what does not fall in reverse order is no training.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Action, Trace
from ...snapshots.timeline import Lifetimes
from .periods import find_period
from .phases import BACKWARD, FORWARD, OPTIMIZER, OTHER, ZERO_GRAD, Phases, Window, runs

# Deaths against births of the pile: -1 is exactly the reverse order. Inference in the same order has +1.
REVERSED = -0.5
MIN_PILE = 8  # blocks: the order of fewer says nothing
MIN_SEEDED_PILE = 4  # where a scalar lives as long as they fall
SCALAR_BYTES = 8
MIN_APART = 0.25  # of the blocks of a pile, that fall with others made between: backward works between two of them
# Of a pile that falls in the life of the loss: what the loss was made of falls before backward; after it an input, and
# outputs that have names.
FEW_BEFORE, MOST_DURING = 0.25, 0.5
OWN_BYTES = 0.25  # backwards: 0.39 and more, and the rest has names; such constants: 0.07
# Of the bytes that an iteration made until its turn: forwards without gradients keep 1 to 6 %, with them 38 to 67.
MIN_KEPT = 0.2
# A checkpointed forward keeps as little as one without gradients; but what it keeps falls in order.
CHECKPOINTED = -0.9


def phases_by_shape(trace: Trace, lives: Lifetimes, steps: Sequence[Window]) -> Phases:
    """The phase of every event; windows of `Optimizer.step` are taken where there are any."""
    events = len(trace)
    phase = np.full(events, OTHER, np.int8)
    rounds = seeded_backwards(trace, lives)
    if rounds:
        _fill(phase, rounds, bool(steps))
    else:
        _fill_by_turns(phase, trace, lives, steps)
    for window in steps:
        phase[window.first : window.last + 1] = OPTIMIZER
    freed = np.flatnonzero(lives.free_requested < events)
    at = lives.free_requested[freed]
    older = BACKWARD if (phase == BACKWARD).any() else OTHER  # what never trains drops no gradients
    born_in = np.where(lives.birth[freed] < 0, older, phase[np.maximum(lives.birth[freed], 0)])
    between = (OTHER,) if steps else (OTHER, OPTIMIZER)  # a step that is annotated drops moments, not gradients
    phase[at[np.isin(phase[at], between) & (born_in == BACKWARD)]] = ZERO_GRAD
    is_alloc = trace.action == Action.ALLOC
    run_start, run_end = runs(phase, is_alloc, np.zeros(events, np.bool_))
    return Phases(
        phase=phase,
        run_start=run_start,
        run_end=run_end,
        python_stacks=False,
        native_stacks=False,
        ends_out_of_memory=bool((trace.action == Action.OOM).any()),
        told_by_stacks=False,
    )


class Round(NamedTuple):
    """Events of one iteration, and what its backward frees of the pile."""

    first: int  # of the pile
    seed: int  # where backward begins
    last: int  # of backward
    births: NDArray[np.int64]
    deaths: NDArray[np.int64]


def seeded_backwards(trace: Trace, lives: Lifetimes) -> list[Round]:
    """Backwards by their seed, in order.

    `loss.backward()` makes the gradient of the loss, a scalar, and drops it when backward is over. In the life of such
    a scalar the pile that it found falls in reverse order, while other blocks are made. The loss itself sees the same
    pile fall, and lives longer.
    """
    found = sorted(_falls(trace, lives), key=lambda one: one.last - one.seed)
    ends = np.sort([one.last for one in found])
    chosen: list[Round] = []
    for each in found:
        earlier = np.searchsorted(ends, each.seed)
        own = each.births > (ends[earlier - 1] if earlier else -1)  # older blocks are of an earlier iteration
        inside = [other for other in chosen if other.seed <= each.last and other.last >= each.seed]
        if not inside or _is_part(inside, each, own):
            chosen = [other for other in chosen if all(other is not one for one in inside)]
            chosen.append(each)
    return list(_with_their_forward(sorted(chosen, key=lambda one: one.seed), lives, len(trace)))


def _with_their_forward(rounds: Sequence[Round], lives: Lifetimes, events: int) -> Iterator[Round]:
    """Those in which much of what was made since the last one falls: a constant of a layer sees but its own."""
    freed = lives.free_requested < events
    end = -1
    for each in rounds:
        own = freed & (lives.birth > end) & (lives.birth < each.seed) & (lives.free_requested > each.seed)
        own &= lives.requested > SCALAR_BYTES
        falls = own & (lives.free_requested <= each.last)
        if lives.requested[falls].sum() >= OWN_BYTES * lives.requested[own].sum():
            yield each._replace(first=max(each.first, end + 1))
            end = each.last


def _is_part(inside: Sequence[Round], whole: Round, own: NDArray[np.bool_]) -> bool:
    """Whether what lies inside `whole` was made by its backward: of `own`, its pile, much falls before or after it."""
    if any(2 * np.count_nonzero(one.births > whole.seed) > len(one.births) for one in inside):
        return False  # a pile of its own
    deaths = whole.deaths[own]
    before = np.count_nonzero(deaths < min(one.seed for one in inside))
    during = sum(np.count_nonzero((deaths >= one.seed) & (deaths <= one.last)) for one in inside)
    return bool(before > FEW_BEFORE * len(deaths) or during < MOST_DURING * len(deaths))


def _falls(trace: Trace, lives: Lifetimes) -> Iterator[Round]:
    """Every scalar in whose life a pile falls."""
    allocs = np.concatenate(([0], np.cumsum(trace.action == Action.ALLOC)))
    large = lives.requested > SCALAR_BYTES
    freed = np.flatnonzero(large & (lives.birth >= 0) & (lives.free_requested < len(trace)))
    freed = freed[np.argsort(lives.free_requested[freed], kind="stable")]
    births, deaths = lives.birth[freed], lives.free_requested[freed]
    for row in np.flatnonzero(~large & (lives.birth >= 0)).tolist():
        seed, last = int(lives.birth[row]), min(int(lives.free_requested[row]), len(trace) - 1)
        if allocs[last + 1] - allocs[seed + 1] < MIN_SEEDED_PILE:
            continue
        inside = slice(np.searchsorted(deaths, seed), np.searchsorted(deaths, last, side="right"))
        falls = inside.start + np.flatnonzero(births[inside] < seed)
        if len(falls) < MIN_SEEDED_PILE:
            continue
        if _works_between(allocs, deaths[falls]) and _correlation(births[falls], deaths[falls]) <= REVERSED:
            yield Round(int(births[falls].min()), seed, last, births[falls], deaths[falls])


def _works_between(allocs: NDArray[np.int64], deaths: NDArray[np.int64]) -> bool:
    """Whether other blocks are made while a pile falls: a graph that nobody holds any more falls at once."""
    apart = np.diff(allocs[deaths]) > 0
    return bool(np.count_nonzero(apart) >= MIN_APART * len(apart))


def _fill(phase: NDArray[np.int8], rounds: Sequence[Round], stepped: bool) -> None:
    """What lies between a backward and the next pile is the optimizer's, unless it is much longer than usual."""
    for each in rounds:
        phase[each.first : each.seed] = FORWARD
        phase[each.seed : each.last + 1] = BACKWARD
    gaps = [(before.last + 1, after.first) for before, after in pairwise(rounds)]
    usual = int(np.median([end - start for start, end in gaps])) if gaps else len(phase)
    for start, end in [*gaps, (rounds[-1].last + 1, len(phase))]:
        if not stepped:
            phase[start : min(end, start + usual)] = OPTIMIZER
        if end - start > 2 * usual:
            phase[start + usual : end] = FORWARD


def _fill_by_turns(phase: NDArray[np.int8], trace: Trace, lives: Lifetimes, steps: Sequence[Window]) -> None:
    bounds = [window.last for window in steps] or list(find_period(trace, None))
    start = 0
    for end in [*bounds, len(trace) - 1]:
        if end > start:
            first, turn, last = _turn(trace, lives, start, end)
            phase[first : turn + 1] = FORWARD
            phase[turn + 1 : last + 1] = BACKWARD
            if last > turn and not steps:
                phase[last + 1 : end + 1] = OPTIMIZER
        start = end + 1


def _turn(trace: Trace, lives: Lifetimes, start: int, end: int) -> tuple[int, int, int]:
    """First event of an iteration's pile, the turn, and when the pile is gone; without any, it all is a forward."""
    inside = (lives.free_requested > start) & (lives.free_requested <= end)
    own = np.flatnonzero(inside & ((lives.birth >= start) | (lives.birth < 0)))
    change = np.zeros(end - start + 2, np.int64)
    np.add.at(change, np.maximum(lives.birth[own] - start, 0), lives.requested[own])
    np.subtract.at(change, lives.free_requested[own] - start, lives.requested[own])
    turn = start + int(np.cumsum(change).argmax())
    pile = own[(lives.birth[own] <= turn) & (lives.free_requested[own] > turn)]
    made = lives.requested[(lives.birth >= start) & (lives.birth <= turn)].sum()
    kept = lives.requested[pile].sum() >= MIN_KEPT * made
    order = _order(lives, pile) if len(pile) >= MIN_PILE else 0.0
    allocs = np.concatenate(([0], np.cumsum(trace.action == Action.ALLOC)))
    if order <= (REVERSED if kept else CHECKPOINTED) and _works_between(allocs, np.sort(lives.free_requested[pile])):
        first, last = max(start, int(lives.birth[pile].min())), int(lives.free_requested[pile].max())
        return first, _seed(trace, lives, pile, turn), last
    first = int(lives.birth[own].min()) if len(own) else end + 1
    return max(start, first), end, end


def _seed(trace: Trace, lives: Lifetimes, pile: NDArray[np.intp], turn: int) -> int:
    """Backward begins with the gradient of the loss, a scalar: before what it makes itself adds to the pile."""
    scalars = np.flatnonzero((trace.action[: turn + 1] == Action.ALLOC) & (trace.size[: turn + 1] <= SCALAR_BYTES))
    if not len(scalars):
        return turn
    seed = int(scalars[-1])
    older = lives.birth[pile] < seed
    most = 2 * older.sum() >= len(pile) or 2 * lives.requested[pile[older]].sum() >= lives.requested[pile].sum()
    return seed - 1 if most else turn


def _order(lives: Lifetimes, pile: NDArray[np.intp]) -> float:
    """Rank correlation of births and deaths; those older than the recording have no order among themselves."""
    recorded = pile[lives.birth[pile] >= 0]
    if len(recorded) < MIN_PILE:
        return -1.0
    return _correlation(lives.birth[recorded], lives.free_requested[recorded])


def _correlation(births: NDArray[np.int64], deaths: NDArray[np.int64]) -> float:
    ranks = np.argsort(np.argsort(births)), np.argsort(np.argsort(deaths))
    return float(np.corrcoef(*ranks)[0, 1])
