"""Sizes of the gradients: the multiset of the parameters."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .facts import Facts
from .multisets import bytes_of
from .phases import BACKWARD, ZERO_GRAD
from .signs import Sign

# Of a group's bytes, and of its size classes: with less than this beyond an earlier group's, both are of one model.
OWN = 0.5


def gradient_sizes(facts: Facts) -> Mapping[int, int]:
    """What backward made and left behind, and what zero_grad dropped, by size, over all models that were trained.

    Neither alone is complete: a recording that begins within a backward has made only half of what zero_grad drops.
    Groups of different models (a GAN's) add up, those of one model do not; and no size counts more often than it was
    alive at once, which is what shared parts of two losses come to.
    """
    survivors = (facts.birth_phase == BACKWARD) & facts.outlives_run & ~facts.run_cut & ~facts.dies_in_its_backward
    survivors &= (facts.signs & (Sign.CUBLAS | Sign.RECOMPUTE | Sign.TUNING)) == 0
    survivors &= facts.never_freed | (facts.death_phase != BACKWARD)  # else part of a graph of gradients
    survivors &= ((facts.signs & Sign.COLLECTIVE) == 0) | facts.spans_a_phase  # a reduction's output lives to the step
    made = np.flatnonzero(survivors)
    dropped = np.flatnonzero((facts.death_phase == ZERO_GRAD) & ~facts.never_freed & (facts.older | survivors))
    groups = [
        *_grouped(facts, made, facts.backwards[facts.lives.birth[made]]),
        *_grouped(facts, dropped, facts.phases.run_start[facts.lives.free_requested[dropped]]),
    ]
    unit = merged(groups)
    if len(groups) <= 1:
        return unit
    rows = np.union1d(made, dropped)
    together = {size: alive_at_once(facts, rows[facts.requested[rows] == size]) for size in unit}
    return {size: max(min(n, together[size]), *(group[size] for group in groups)) for size, n in unit.items()}


def _grouped(facts: Facts, rows: NDArray[np.intp], by: NDArray[np.int64]) -> list[Counter[int]]:
    return [Counter(facts.requested[rows[by == each]].tolist()) for each in np.unique(by)]


def merged(groups: Iterable[Counter[int]]) -> Counter[int]:
    """Groups that share most of their bytes are one model's, whose size classes are as large as any of them says."""
    unit: Counter[int] = Counter()
    for group in sorted(groups, key=bytes_of, reverse=True):
        own = group - unit
        if bytes_of(own) >= OWN * bytes_of(group) or len(own) >= OWN * len(group):
            unit += group
        else:
            unit |= group
    return unit


def alive_at_once(facts: Facts, rows: NDArray[np.intp] | Sequence[int]) -> int:
    """How many of these blocks are alive together, at most."""
    births = np.sort(facts.lives.birth[rows])
    deaths = np.sort(facts.lives.death[rows])
    if not len(births):
        return 0
    return int((np.arange(1, len(births) + 1) - np.searchsorted(deaths, births, side="left")).max())
