"""Sizes of the gradients that the recorded backwards made: the multiset of the parameters."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .facts import Facts
from .multisets import bytes_of
from .phases import BACKWARD
from .signs import Sign


def gradient_sizes(facts: Facts) -> Mapping[int, int]:
    """What backward made and left behind, by size, over all models that were trained.

    Backwards of different models (a GAN's) add up, those of one model do not; and no size counts more often than it
    was alive at once, which is what shared parts of two losses come to.
    """
    survivors = (facts.birth_phase == BACKWARD) & facts.outlives_run & ~facts.run_cut & ~facts.dies_in_its_backward
    survivors &= (facts.signs & (Sign.CUBLAS | Sign.RECOMPUTE | Sign.TUNING)) == 0
    survivors &= ((facts.signs & Sign.COLLECTIVE) == 0) | facts.spans_a_phase  # a reduction's output lives to the step
    rows = np.flatnonzero(survivors)
    if not len(rows):
        return {}
    backward = facts.backwards[facts.lives.birth[rows]]
    groups = [Counter(facts.requested[rows[backward == each]].tolist()) for each in np.unique(backward)]
    unit: Counter[int] = Counter()
    for group in sorted(groups, key=bytes_of, reverse=True):
        if group - unit:  # else the same model's, or a part of it
            unit += group
    if len(groups) == 1:
        return unit
    together = {size: alive_at_once(facts, rows[facts.requested[rows] == size]) for size in unit}
    return {size: max(min(n, together[size]), *(group[size] for group in groups)) for size, n in unit.items()}


def alive_at_once(facts: Facts, rows: NDArray[np.intp] | Sequence[int]) -> int:
    """How many of these blocks are alive together, at most."""
    births = np.sort(facts.lives.birth[rows])
    deaths = np.sort(facts.lives.death[rows])
    if not len(births):
        return 0
    return int((np.arange(1, len(births) + 1) - np.searchsorted(deaths, births, side="left")).max())
