"""What becomes smaller with the batch: activations, inputs, and what backward makes of them."""

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from .passes import iterations
from .reduction_staging import restaged
from .whatif_timeline import BACKWARD, FORWARD, OTHER, Mask, Timeline

SHORT_EVENTS = 64  # a kernel's workspace is back after a few events, a library handle's stays
LONGEST_OPERATION = 24.0  # events of one operation of backward: its results, their sums, what it lets go


def scales_with_batch(timeline: Timeline) -> Mask:
    """Rows whose size is proportional to the samples of a batch.

    Activations, inputs and the temporaries of forward, loss and backward. Not: a temporary of backward that has
    exactly the size of a parameter while no activation has it (a weight's gradient before it is added up), and what a
    cast of the weights takes.
    """
    of_batch = timeline.is_category(Category.ACTIVATION, Category.INPUT)
    between = timeline.is_category(Category.TEMPORARY, Category.UNKNOWN) & timeline.is_phase(FORWARD, BACKWARD, OTHER)
    parameter_sizes = np.unique(timeline.size[timeline.is_category(Category.PARAMETER)])
    activation_sizes = np.unique(timeline.size[of_batch])
    # what a kernel takes for its own work (the staging of a reduction over rows) follows the rows
    call = timeline.is_category(Category.WORKSPACE) & (timeline.death - timeline.birth < SHORT_EVENTS)
    like_parameter = np.isin(timeline.size, np.setdiff1d(parameter_sizes, activation_sizes))
    return of_batch | call | (between & ~(like_parameter & timeline.is_phase(BACKWARD)))


def with_batch(timeline: Timeline, factor: float, gpu: str | None) -> Timeline:
    """The timeline for a batch of `factor` times the samples, recorded on `gpu`."""
    new = timeline.resized(scales_with_batch(timeline), factor)
    rows, sizes = restaged(timeline, factor, gpu)
    new.size[rows] = sizes
    return new


def with_gradients_waiting(timeline: Timeline) -> Timeline:
    """Gradients of earlier micro-batches are there from the start of a forward; new ones are added to them at once.

    Where the script clears old gradients within the forward, they are the ones that wait, and the new ones follow.
    """
    gradient = timeline.is_category(Category.GRADIENT)
    birth, death = timeline.birth.copy(), timeline.death
    parts = []
    for iteration in iterations(timeline):
        old = gradient & (timeline.birth < iteration.start)
        old &= (death > iteration.start) & (death <= iteration.backward_start)
        from_here = max(iteration.start, float(death[old].max())) if old.any() else iteration.start
        new = gradient & (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
        new &= death >= iteration.end
        rows = np.flatnonzero(new)
        if len(rows):
            fresh, done = timeline.birth[rows], ends_of_operations(timeline, rows)
            parts.append(timeline.copies(rows, birth=fresh, death=done, category=Category.TEMPORARY, phase=BACKWARD))
            birth[rows] = from_here
    moved = timeline.copies(np.arange(len(timeline)), birth=birth, death=death)
    return moved.joined(*parts)


def ends_of_operations(timeline: Timeline, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """When the operation of backward that made each of `rows` is done: before another module's makes something."""
    order = np.argsort(timeline.birth, kind="stable")
    birth, module = timeline.birth[order], timeline.module[order]
    switches = np.flatnonzero(np.diff(module) != 0) + 1
    following = np.append(birth[switches], np.inf)[np.searchsorted(birth[switches], timeline.birth[rows], side="right")]
    fresh: NDArray[np.float64] = timeline.birth[rows]
    longest = np.where(timeline.module[rows] >= 0, LONGEST_OPERATION, 1.5)
    return np.minimum(following - 0.25, fresh + longest)
