"""Iterations of a loop that no optimizer and no annotation marks: allocations that repeat evenly.

A key is a stack with a size. The trap is layers: one forward of a 32-layer model is perfectly periodic too. What
tells them apart is that embedding, final norm and head occur once in it, while in a loop nothing after the first
round does.
"""

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Action, Trace
from .phases import FORWARD

MIN_KEYS = 2
EVEN_GAP = (0.4, 1.6)  # of the mean gap
COVERAGE = (0.7, 1.6)  # first to last anchor plus a period, as a share of the trace
REGULAR_BYTES = 0.9  # of the complete periods, from keys whose count is a multiple of their number
MAX_SINGLE_KEYS = 0.02  # keys after the first period that occur once
LEAVES_FORWARD = 0.8  # of the rounds have an event outside every forward, or they are layers


def find_period(trace: Trace, phase: NDArray[np.int8] | None) -> tuple[int, ...]:
    """The last event of each complete round; empty where the trace is a single iteration or nothing repeats.

    `phase` is that of each event; None where nothing has a stack, and sizes have to do.
    """
    allocs = np.flatnonzero((trace.action == Action.ALLOC) & ((trace.stack >= 0) | (phase is None)))
    if len(allocs) < 2 * MIN_KEYS:
        return ()
    pairs = np.stack([trace.stack[allocs].astype(np.int64), trace.size[allocs]], axis=1)
    _, key = np.unique(pairs, axis=0, return_inverse=True)
    key = key.reshape(-1)
    anchors_by_count = _even_keys(key)
    for count in sorted(anchors_by_count):
        anchors = anchors_by_count[count]
        if len(anchors) < MIN_KEYS:
            continue
        first = min(anchors, key=lambda positions: int(positions[0]))
        if _is_period(first, key, trace.size[allocs]) and not _are_layers(first, allocs, phase):
            return tuple(int(event) - 1 for event in allocs[first[1:]])
    return ()


def _even_keys(key: NDArray[np.int64]) -> dict[int, list[NDArray[np.int64]]]:
    """Positions of the keys that come back evenly, by how often."""
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    found: dict[int, list[NDArray[np.int64]]] = {}
    for positions in np.split(order, bounds):
        if len(positions) < 2:
            continue
        gaps = np.diff(positions)
        mean = gaps.mean()
        if gaps.min() >= EVEN_GAP[0] * mean and gaps.max() <= EVEN_GAP[1] * mean:
            found.setdefault(len(positions), []).append(positions)
    return found


def _is_period(anchors: NDArray[np.int64], key: NDArray[np.int64], size: NDArray[np.int64]) -> bool:
    total, rounds = len(key), len(anchors) - 1
    period = (anchors[-1] - anchors[0]) / rounds
    coverage = (anchors[-1] - anchors[0] + period) / total
    if not COVERAGE[0] <= coverage <= COVERAGE[1]:
        return False
    inside = key[anchors[0] : anchors[-1]]
    counts = np.bincount(inside, minlength=int(key.max()) + 1)
    regular = counts[inside] % rounds == 0
    weights = size[anchors[0] : anchors[-1]]
    if weights[regular].sum() < REGULAR_BYTES * weights.sum():
        return False
    after = np.bincount(key[int(anchors[0] + period) :], minlength=int(key.max()) + 1)
    everywhere = np.bincount(key)
    seen = np.flatnonzero(after)
    single = (everywhere[seen] == 1).sum()
    return bool(single <= MAX_SINGLE_KEYS * len(seen))


def _are_layers(anchors: NDArray[np.int64], allocs: NDArray[np.int64], phase: NDArray[np.int8] | None) -> bool:
    """All inside one forward: between two rounds of a loop something happens outside it, if only a free."""
    if phase is None:
        return False
    events = allocs[anchors]
    outside = np.cumsum(phase != FORWARD)
    leaves = np.diff(outside[events]) > 0
    return bool(leaves.mean() < LEAVES_FORWARD)
