"""A parameter's memory is replaced: in a step (`p.data = p.data - lr * update`), or elsewhere (a running average)."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from .facts import Facts
from .multisets import WHOLE, bytes_of, copies_of
from .phases import BACKWARD, FORWARD, OPTIMIZER, OTHER, run_starts

# The old block is dropped within so many events of the new one's birth.
WITHIN_EVENTS = 40


def replaced_parameters(facts: Facts, known: set[int]) -> set[int]:
    """Rows born in a step on the stack that soon frees a parameter of the same size; chains are followed."""
    newborn = np.flatnonzero((facts.birth_phase == OPTIMIZER) & ~facts.older)
    found: set[int] = set()
    if not known:
        return found
    for new, old in _replacements(facts, newborn, np.unique(facts.requested[list(known)])):
        if old in known or old in found:
            found.add(new)
    return found


def averages(facts: Facts, unit: Mapping[int, int]) -> set[int]:
    """Rows that one line outside any step makes, or drops for them, all of the parameters' sizes together.

    The momentum encoder of contrastive learning, an average of the weights: no gradient, and no optimizer's step. What
    replaces and what is replaced outlives a backward.
    """
    stays = facts.never_freed | (facts.rounds >= 1)
    newborn = np.flatnonzero(np.isin(facts.birth_phase, (FORWARD, OTHER)) & ~facts.older & stays)
    backwards = run_starts(facts.phases, BACKWARD)
    by_round: dict[tuple[int, int], dict[int, int]] = {}  # -> new -> old
    sizes = np.array(sorted(unit), np.int64)
    for new, old in _replacements(facts, newborn, sizes) if len(sizes) else ():
        if facts.older[old] or facts.rounds[old] >= 1:
            place = int(facts.places[facts.lives.alloc_stack[new]])
            by_round.setdefault((place, int(np.searchsorted(backwards, facts.lives.birth[new]))), {})[new] = old
    found: set[int] = set()
    for replaced in by_round.values():
        made = Counter(facts.requested[list(replaced)].tolist())
        copies = copies_of(unit, made)
        if copies and bytes_of(made) <= (1 + WHOLE) * copies * bytes_of(unit):
            found.update(replaced, replaced.values())
    return found


def _replacements(facts: Facts, newborn: NDArray[np.intp], sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Rows of `newborn`, of one of `sizes` (sorted), each with the rows that its own line soon drops for it."""
    lives = facts.lives
    size_of = np.minimum(np.searchsorted(sizes, facts.requested), len(sizes) - 1)
    of_size = sizes[size_of] == facts.requested
    freed = np.flatnonzero(of_size & (lives.free_requested < facts.events))
    newborn = newborn[of_size[newborn]]
    newborn = newborn[np.argsort(lives.birth[newborn])]
    # one number for (size, event), so that the frees that follow a birth lie together
    width = facts.events + WITHIN_EVENTS + 1
    when = size_of[freed] * width + lives.free_requested[freed]
    order = np.argsort(when, kind="stable")
    freed, when = freed[order], when[order]
    birth = size_of[newborn] * width + lives.birth[newborn]
    first = np.searchsorted(when, birth, side="right")
    last = np.searchsorted(when, birth + WITHIN_EVENTS, side="right")
    for i in np.flatnonzero(last > first).tolist():
        for old in freed[first[i] : last[i]].tolist():
            if old != newborn[i] and _same_line(facts, int(newborn[i]), old):
                yield int(newborn[i]), old


def _same_line(facts: Facts, new: int, old: int) -> bool:
    lines = facts.lines
    made, dropped = int(facts.lives.alloc_stack[new]), int(facts.lives.free_stack[old])
    return made >= 0 and dropped >= 0 and bool(lines[made] == lines[dropped] >= 0)
