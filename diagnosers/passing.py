"""Which activations no backward reads: what a forward makes on its way and drops again before it ends.

Neither checkpointing nor a smaller graph changes these: only computing in pieces divides them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .attribution.facts import Facts
from .attribution.phases import BACKWARD, FORWARD, OPTIMIZER, run_starts
from .attribution.signs import Sign

# Of the bytes that one stack made before: with less than this kept, what it makes now is in passing.
KEPT_SHARE = 0.5
# As for a graph without a backward (OOM011): without gradients 0.008 to 0.06 of it is alive, with them 0.38 to 0.67.
GRAPH_SHARE = 0.33
MIN_BLOCKS = 20
LARGEST_LEFT_OUT = 2


def passing(facts: Facts, rows: Sequence[int], serves: bool | None) -> frozenset[int]:
    """Of `rows`, which are activations: those that die in the forward that made them, or in the backward.

    Of blocks that are alive where the recording is cut, what the same stack made in earlier runs tells, but for what
    its kernels worked with; else whether the job `serves`, that is, trains nothing (None = as far as the recording
    shows).
    """
    in_backward = (facts.birth_phase == BACKWARD) & ((facts.signs & Sign.RECOMPUTE) == 0)
    kept = np.where(in_backward, facts.rounds >= 1, facts.outlives_run)
    told = ~(facts.never_freed & facts.run_cut)
    before = _kept_share(facts, kept, ~facts.run_cut & ~facts.scratch & (facts.lives.alloc_stack >= 0))
    trains = np.isin(facts.phases.phase, (BACKWARD, OPTIMIZER)).any() or (facts.signs & _TRAINS).any()
    only = not trains and len(run_starts(facts.phases, FORWARD)) > 1  # one that was cut may have had a backward to come
    serves = (only if serves is None else serves) and not _keeps_a_graph(facts)
    found = []
    for row in rows:
        if facts.older[row] or not (in_backward[row] or facts.birth_phase[row] == FORWARD):
            continue
        share = before.get(int(facts.lives.alloc_stack[row]), 0.0 if serves else 1.0)
        drops = not kept[row] if told[row] else share < KEPT_SHARE or bool(facts.signs[row] & Sign.NO_GRAD)
        if drops:
            found.append(row)
    return frozenset(found)


def _keeps_a_graph(facts: Facts) -> bool:
    """Of the forward that the recording was cut in: much of what it made is alive, the largest blocks aside."""
    mine = np.flatnonzero((facts.birth_phase == FORWARD) & facts.run_cut & ~facts.older)
    mine = mine[np.argsort(facts.requested[mine])][:-LARGEST_LEFT_OUT]
    alive = facts.requested[mine[facts.never_freed[mine]]].sum()
    return len(mine) >= MIN_BLOCKS and bool(alive >= GRAPH_SHARE * facts.requested[mine].sum())


_TRAINS = Sign.OPTIMIZER_INIT | Sign.OPTIMIZER | Sign.ENGINE


def _kept_share(facts: Facts, kept: NDArray[np.bool_], told: NDArray[np.bool_]) -> dict[int, float]:
    """By stack: of the bytes of which it is known, the share that was kept."""
    rows = np.flatnonzero(told & ~facts.older)
    stacks = facts.lives.alloc_stack[rows]
    size = int(stacks.max(initial=-1)) + 1
    total = np.bincount(stacks, facts.requested[rows], size)
    mine = np.bincount(stacks, facts.requested[rows] * kept[rows], size)
    return {stack: float(mine[stack] / total[stack]) for stack in np.flatnonzero(total).tolist()}
