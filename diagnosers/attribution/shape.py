"""Phases of a recording without a single stack, from the shape of its memory.

A forward piles up what its backward needs, and the backward drops it in reverse order. So the moment at which most of
an iteration's own bytes are alive is the turn from one to the other. What was made before the first of the pile is
the model; what does not fall in reverse order is no training.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Action, Trace
from ...snapshots.timeline import Lifetimes
from .periods import find_period
from .phases import BACKWARD, FORWARD, OPTIMIZER, OTHER, ZERO_GRAD, Phases, Window, runs

# Deaths against births of the pile: -1 is exactly the reverse order. Inference in the same order has +1.
REVERSED = -0.5
MIN_PILE = 8  # blocks: the order of fewer says nothing
SCALAR_BYTES = 8
# Of the bytes that an iteration made until its turn: forwards without gradients keep 1 to 6 %, with them 38 to 67.
MIN_KEPT = 0.2
# A checkpointed forward keeps as little as one without gradients; but what it keeps falls in order.
CHECKPOINTED = -0.9


def phases_by_shape(trace: Trace, lives: Lifetimes, steps: Sequence[Window]) -> Phases:
    """The phase of every event; windows of `Optimizer.step` are taken where there are any."""
    events = len(trace)
    phase = np.full(events, OTHER, np.int8)
    bounds = [window.last for window in steps] or list(find_period(trace, None))
    start = 0
    for end in [*bounds, events - 1]:
        if end > start:
            first, turn, last = _turn(trace, lives, start, end)
            phase[first : turn + 1] = FORWARD
            phase[turn + 1 : last + 1] = BACKWARD
            if last > turn and not steps:
                phase[last + 1 : end + 1] = OPTIMIZER
        start = end + 1
    for window in steps:
        phase[window.first : window.last + 1] = OPTIMIZER
    freed = np.flatnonzero(lives.free_requested < events)
    at = lives.free_requested[freed]
    older = BACKWARD if (phase == BACKWARD).any() else OTHER  # what never trains drops no gradients
    born_in = np.where(lives.birth[freed] < 0, older, phase[np.maximum(lives.birth[freed], 0)])
    phase[at[np.isin(phase[at], (OTHER, OPTIMIZER)) & (born_in == BACKWARD)]] = ZERO_GRAD
    is_alloc = trace.action == Action.ALLOC
    run_start, run_end = runs(phase, is_alloc, np.zeros(events, np.bool_))
    return Phases(
        phase=phase,
        run_start=run_start,
        run_end=run_end,
        python_stacks=False,
        native_stacks=False,
        ends_out_of_memory=bool((trace.action == Action.OOM).any()),
        told_by_stacks=False,
    )


def _turn(trace: Trace, lives: Lifetimes, start: int, end: int) -> tuple[int, int, int]:
    """First event of an iteration's pile, the turn, and when the pile is gone; without any, it all is a forward."""
    inside = (lives.free_requested > start) & (lives.free_requested <= end)
    own = np.flatnonzero(inside & ((lives.birth >= start) | (lives.birth < 0)))
    change = np.zeros(end - start + 2, np.int64)
    np.add.at(change, np.maximum(lives.birth[own] - start, 0), lives.requested[own])
    np.subtract.at(change, lives.free_requested[own] - start, lives.requested[own])
    turn = start + int(np.cumsum(change).argmax())
    pile = own[(lives.birth[own] <= turn) & (lives.free_requested[own] > turn)]
    made = lives.requested[(lives.birth >= start) & (lives.birth <= turn)].sum()
    kept = lives.requested[pile].sum() >= MIN_KEPT * made
    order = _order(lives, pile) if len(pile) >= MIN_PILE else 0.0
    if order <= (REVERSED if kept else CHECKPOINTED):
        first, last = max(start, int(lives.birth[pile].min())), int(lives.free_requested[pile].max())
        return first, _seed(trace, lives, pile, turn), last
    first = int(lives.birth[own].min()) if len(own) else end + 1
    return max(start, first), end, end


def _seed(trace: Trace, lives: Lifetimes, pile: NDArray[np.intp], turn: int) -> int:
    """Backward begins with the gradient of the loss, a scalar: before what it makes itself adds to the pile."""
    scalars = np.flatnonzero((trace.action[: turn + 1] == Action.ALLOC) & (trace.size[: turn + 1] <= SCALAR_BYTES))
    if not len(scalars):
        return turn
    seed = int(scalars[-1])
    older = lives.birth[pile] < seed
    most = 2 * older.sum() >= len(pile) or 2 * lives.requested[pile[older]].sum() >= lives.requested[pile].sum()
    return seed - 1 if most else turn


def _order(lives: Lifetimes, pile: NDArray[np.intp]) -> float:
    """Rank correlation of births and deaths; those older than the recording have no order among themselves."""
    recorded = pile[lives.birth[pile] >= 0]
    if len(recorded) < MIN_PILE:
        return -1.0
    births = np.argsort(np.argsort(lives.birth[recorded]))
    deaths = np.argsort(np.argsort(lives.free_requested[recorded]))
    return float(np.corrcoef(births, deaths)[0, 1])
