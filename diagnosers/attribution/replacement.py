"""Hand-written optimizers replace a parameter's memory in step: `p.data = p.data - lr * update`."""

import numpy as np

from .facts import Facts
from .phases import OPTIMIZER

# The old block is dropped within so many events of the new one's birth.
WITHIN_EVENTS = 40


def replaced_parameters(facts: Facts, known: set[int]) -> set[int]:
    """Rows born in a step on the stack that soon frees a parameter of the same size; chains are followed."""
    newborn = np.flatnonzero((facts.birth_phase == OPTIMIZER) & ~facts.older)
    if not known or not len(newborn):
        return set()
    lives = facts.lives
    sizes = np.sort(facts.requested[list(known)])
    size_of = np.minimum(np.searchsorted(sizes, facts.requested), len(sizes) - 1)
    of_a_parameter = sizes[size_of] == facts.requested
    freed = np.flatnonzero(of_a_parameter & (lives.free_requested < facts.events))
    newborn = newborn[of_a_parameter[newborn]]
    newborn = newborn[np.argsort(lives.birth[newborn])]
    # one number for (size, event), so that the frees that follow a birth lie together
    width = facts.events + WITHIN_EVENTS + 1
    when = size_of[freed] * width + lives.free_requested[freed]
    order = np.argsort(when, kind="stable")
    freed, when = freed[order], when[order]
    birth = size_of[newborn] * width + lives.birth[newborn]
    first = np.searchsorted(when, birth, side="right")
    last = np.searchsorted(when, birth + WITHIN_EVENTS, side="right")
    found: set[int] = set()
    for i in np.flatnonzero(last > first).tolist():
        row = int(newborn[i])
        for old in freed[first[i] : last[i]].tolist():
            if (old in known or old in found) and old != row and _same_line(facts, row, old):
                found.add(row)
                break
    return found


def _same_line(facts: Facts, new: int, old: int) -> bool:
    lines = facts.lines
    made, dropped = int(facts.lives.alloc_stack[new]), int(facts.lives.free_stack[old])
    return made >= 0 and dropped >= 0 and bool(lines[made] == lines[dropped] >= 0)
