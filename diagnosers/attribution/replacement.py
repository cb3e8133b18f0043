"""Hand-written optimizers replace a parameter's memory in step: `p.data = p.data - lr * update`."""

from bisect import bisect_right

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
    sizes = {int(facts.requested[row]) for row in known}
    lives = facts.lives
    freed: dict[int, list[tuple[int, int]]] = {}
    for row in np.argsort(lives.free_requested, kind="stable").tolist():
        size = int(facts.requested[row])
        if size in sizes and lives.free_requested[row] < facts.events:
            freed.setdefault(size, []).append((int(lives.free_requested[row]), row))
    found: set[int] = set()
    for row in newborn[np.argsort(lives.birth[newborn])].tolist():
        candidates = freed.get(int(facts.requested[row]), [])
        birth = int(lives.birth[row])
        start = bisect_right(candidates, (birth, 1 << 62))
        for free_event, old in candidates[start:]:
            if free_event > birth + WITHIN_EVENTS:
                break
            if (old in known or old in found) and old != row and _same_line(facts, row, old):
                found.add(row)
                break
    return found


def _same_line(facts: Facts, new: int, old: int) -> bool:
    lines = facts.lines
    made, dropped = int(facts.lives.alloc_stack[new]), int(facts.lives.free_stack[old])
    return made >= 0 and dropped >= 0 and bool(lines[made] == lines[dropped] >= 0)
