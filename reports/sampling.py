"""Which moments of a trace are drawn: real states only, and never without a peak."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BUCKETS = 1200  # the chart is about as many pixels wide; each bucket gives up to three moments


def moments(
    live: NDArray[np.int64], reserved: NDArray[np.int64], keep: Iterable[int] = (), buckets: int = BUCKETS
) -> NDArray[np.int64]:
    """Events to draw, ascending; -1 = before the first.

    `live` and `reserved` have shape (events + 1,): before the first event and after each. Every bucket of events
    gives the moments of its highest and lowest live bytes and of its highest reserved bytes, so that a peak of one
    event is drawn at its full height. The first state, the last one and `keep` are always drawn.
    """
    states = len(live)
    chosen = [0, states - 1, *(event + 1 for event in keep if -1 <= event < states - 1)]
    if states <= 2 * buckets:
        return np.arange(-1, states - 1, dtype=np.int64)
    width = -(-states // buckets)
    starts = np.arange(0, states, width)
    for column, pick in ((live, np.argmax), (live, np.argmin), (reserved, np.argmax)):
        chosen += [int(start + pick(column[start : start + width])) for start in starts.tolist()]
    return np.unique(np.array(chosen, np.int64)) - 1


def stacked(
    moments: NDArray[np.int64],
    birth: NDArray[np.int64],
    death: NDArray[np.int64],
    size: NDArray[np.int64],
    kind: NDArray[np.integer],
    kinds: int,
) -> NDArray[np.int64]:
    """Live bytes of each kind at each of the `moments`; shape (kinds, moments). A block is alive in [birth, death)."""
    since, until = seen(moments, birth, death)
    sums = np.zeros((kinds, len(moments) + 1), np.int64)
    np.add.at(sums, (kind, since), size)
    np.subtract.at(sums, (kind, until), size)
    return np.cumsum(sums, axis=1)[:, :-1]


def seen(
    moments: NDArray[np.int64], birth: NDArray[np.int64], death: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each block the range [first, last) of the moments that find it alive; empty where none does."""
    return np.searchsorted(moments, birth), np.searchsorted(moments, death)
