"""What a key-value cache keeps of a forward: it outlives the forward without being saved for any backward."""

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.attribution.signs import Sign
from ..diagnosers.attribution.stacks import read_stacks
from ..diagnosers.interface import Category
from .estimating import Case
from .passes import activation_rows, trains
from .whatif_timeline import FORWARD, Mask, Timeline

LEAST_SHARE = 0.05  # of the peak
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


# --- of jobs that generate ---


def refused(case: Case) -> str | None:
    """Why there is nothing to do with a cache."""
    timeline, rows = case.timeline, cache_rows(case)
    if case.facts.optimizers or trains(timeline):
        return "the job trains: its forwards need no cache"
    if not len(rows):
        return "no key-value cache is in the trace"
    if peak_of(timeline, rows) < LEAST_SHARE * timeline.peak().bytes:
        return "the key-value cache is a small part of the peak"
    return None


def cache_rows(case: Case) -> NDArray[np.intp]:
    """Keys and values that are kept, by birth."""
    timeline = case.timeline
    found: Mask = timeline.is_category(Category.KV_CACHE) | kept_by_a_cache(case)
    rows = np.flatnonzero(found & timeline.is_phase(FORWARD))
    return rows[np.argsort(timeline.birth[rows], kind="stable")]


def peak_of(timeline: Timeline, rows: NDArray[np.intp]) -> int:
    return timeline.take(rows).peak().bytes


def layers_of(timeline: Timeline, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of `rows` (by birth): the indices at which another layer begins, and for each row the number of its layer."""
    starts = np.flatnonzero(np.diff(timeline.module[rows], prepend=-2) != 0)
    return starts, np.searchsorted(starts, np.arange(len(rows)), side="right") - 1


def uses_end(timeline: Timeline, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """When the layer of each of `rows` (by birth) has used it: when the next layer appends its own."""
    birth = timeline.birth[rows]
    starts, mine = layers_of(timeline, rows)
    begins = np.append(birth[starts], float(timeline.events))
    end: NDArray[np.float64] = np.minimum(begins[mine + 1], timeline.death[rows])
    return np.maximum(end, birth + 0.2)
