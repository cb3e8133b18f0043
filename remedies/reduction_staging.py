"""The staging of a bias gradient's sum, for another number of rows: it does not follow them.

The sum over the rows of a layer's output gradient takes one kernel, whose blocks meet in global memory where there are
many rows for few columns (`allocator.reductions`). From so many rows on the meeting place has one size, below there is
none: neither is a share of the other.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..allocator.reductions import workspace_bytes
from .costs.links import card
from .passes import sums_of_backward
from .whatif_timeline import Timeline

RESULTS = 4  # the results that an operation of backward makes before its sum: of input, weight and bias
ITEM_BYTES = (4, 2)
ACCUMULATOR_BYTES = 4


def restaged(timeline: Timeline, factor: float, gpu: str | None) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Rows that are such staging (with its semaphores), and their bytes for `factor` times the rows; 1 = none.

    Only what the kernel's launch gives to the byte, for the gradient beside it, is taken to be one.
    """
    rows: list[int] = []
    sizes: list[int] = []
    spec = card(gpu)
    if spec is None:
        return np.array(rows, np.intp), np.array(sizes, np.int64)
    known: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], tuple[int, int] | None] = {}
    for staging, semaphores, results, inputs in _pairs(timeline):
        now = (int(timeline.size[staging]), int(timeline.size[semaphores]))
        key = (*now, results, inputs)
        if key not in known:
            shape = _shape(now, results, inputs, (spec.sm_count, spec.threads_per_sm))
            known[key] = (
                None
                if shape is None
                else _bytes((max(1, int(np.ceil(shape[0] * factor))), shape[1]), (spec.sm_count, spec.threads_per_sm))
            )
        then = known[key]
        if then is not None:
            rows += [staging, semaphores]
            sizes += [max(1, n) for n in then]
    return np.array(rows, np.intp), np.array(sizes, np.int64)


def _pairs(timeline: Timeline) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """Staging and semaphores of each sum; the sizes made just before, and those alive then."""
    order = np.argsort(timeline.birth, kind="stable")
    birth, death, size = timeline.birth[order], timeline.death[order], timeline.size[order]
    for at in np.flatnonzero(np.isin(order, sums_of_backward(timeline))).tolist():
        results = tuple(dict.fromkeys(size[max(0, at - RESULTS) : at].tolist()))
        alive = size[:at][death[:at] > birth[at]]
        yield int(order[at]), int(order[at + 1]), results, tuple(np.unique(alive).tolist())


def _shape(
    now: tuple[int, int], results: Sequence[int], inputs: Sequence[int], chip: tuple[int, int]
) -> tuple[int, int] | None:
    """(rows, columns) of the sum that takes exactly these bytes; None where no tensor there can be its input."""
    for item in ITEM_BYTES:
        for result in results:
            columns = result // item
            for size in inputs if columns and result % item == 0 else ():
                shape = (size // result, columns)
                if size % result == 0 and shape[0] > 1 and _bytes(shape, chip) == now:
                    return shape
    return None


def _bytes(shape: tuple[int, int], chip: tuple[int, int]) -> tuple[int, int]:
    return workspace_bytes(
        shape, (shape[1], 1), (0,), accumulator_bytes=ACCUMULATOR_BYTES, sm_count=chip[0], threads_per_sm=chip[1]
    )
