"""What a key-value cache keeps of a forward: it outlives the forward without being saved for any backward."""

import numpy as np

from ..diagnosers.attribution.signs import Sign
from ..diagnosers.attribution.stacks import read_stacks
from .estimating import Case
from .passes import activation_rows
from .whatif_timeline import Mask, Timeline

COPIED_WITHIN = 64.0  # events from keys and values to their copy in a cache


def kept_by_a_cache(case: Case) -> Mask:
    """Rows of activations that a cache's own code made, told by their stacks."""
    signs = read_stacks(case.profile.snapshot.stacks).signs[case.timeline.stack]
    found: Mask = ((signs & Sign.KV_CACHE) != 0) & activation_rows(case.timeline)
    return found


def without_cache(case: Case) -> Timeline:
    """The timeline without what a key-value cache keeps of a training forward (`use_cache=False`).

    Its first append copies keys and values. What was copied is then saved in the copy's place.
    """
    timeline, cached = case.timeline, kept_by_a_cache(case)
    rows = np.flatnonzero(cached)
    if not len(rows):
        return timeline
    death = timeline.death.copy()
    copied: set[int] = set()
    for row in rows[np.argsort(-timeline.birth[rows], kind="stable")].tolist():
        source = _source(timeline, row, cached, copied)
        if source >= 0:
            copied.add(source)
            death[source] = max(death[source], timeline.death[row])
    return timeline.with_death(death).without(cached)


def _source(timeline: Timeline, row: int, cached: Mask, copied: set[int]) -> int:
    """What a cache copied: the last tensor of that size in its module, else the last that it can be a part of; -1."""
    born, module, size = timeline.birth[row], timeline.module[row], timeline.size[row]
    if module < 0:
        return -1
    near = timeline.under(timeline.modules[module]) & ~cached & (timeline.birth < born)
    near &= (timeline.birth > born - COPIED_WITHIN) & (timeline.death > born) & (timeline.death < timeline.death[row])
    same = [each for each in np.flatnonzero(near & (timeline.size == size)).tolist() if each not in copied]
    found = same or np.flatnonzero(near & (timeline.size > size) & (timeline.size % size == 0)).tolist()
    return max(found, key=lambda each: float(timeline.birth[each]), default=-1)
