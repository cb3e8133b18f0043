"""The passes of a training step in a timeline: where each repeated block ran forward, and where its backward began."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from .whatif_timeline import BACKWARD, FORWARD, OTHER, Mask, Timeline

ENGINE_EVENTS = 7  # from the end of an operation of backward to the release of what it saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One forward and the backward that follows it: times [start, backward_start), [backward_start, end)."""

    start: float
    backward_start: float
    end: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPass:
    """One call of one block in one iteration."""

    path: str
    iteration: Iteration
    rows: NDArray[np.intp]  # allocations made inside it during the forward, by birth
    start: float
    end: float  # the next allocation outside it
    saved: NDArray[np.intp]  # of `rows`: kept for backward, the output not among them
    output: int  # of `rows`: what the block returned, -1 = not found
    backward_start: float  # its first event in backward; inf where the trace ends before


def trains(timeline: Timeline) -> bool:
    """Whether any forward of the trace has a backward."""
    return any(is_training(each, timeline) for each in iterations(timeline))


def iterations(timeline: Timeline) -> tuple[Iteration, ...]:
    """Every forward of the trace with its backward; the last may be cut (`backward_start` and `end` = the end)."""
    found: list[Iteration] = []
    runs = [run for run in timeline.runs if run.phase in (FORWARD, BACKWARD)]
    start: float | None = None
    step = 0
    index = 0
    while index < len(runs):
        if runs[index].phase == FORWARD:
            if start is None:
                start, step = runs[index].start, runs[index].step
            index += 1
            continue
        first = runs[index].start
        end = runs[index].end
        while index + 1 < len(runs) and runs[index + 1].phase == BACKWARD:
            index += 1
            end = runs[index].end
        if start is not None:
            found.append(Iteration(start=start, backward_start=first, end=end, step=step))
        start = None
        index += 1
    if start is not None:
        last = float(timeline.events)
        found.append(Iteration(start=start, backward_start=last, end=last, step=step))
    return tuple(found)


def is_training(iteration: Iteration, timeline: Timeline) -> bool:
    return iteration.backward_start < timeline.events


def accumulates(training: Sequence[Iteration]) -> bool:
    """Several backwards make one step. A step that allocates nothing (SGD's second) is a step all the same."""
    return len(training) > 1.5 * len({each.step for each in training})


def activation_rows(timeline: Timeline) -> Mask:
    """What a forward (and the loss after it) makes: activations, autocast's casts not among them."""
    return timeline.is_category(Category.ACTIVATION) & timeline.is_phase(FORWARD, OTHER)


def for_backward(timeline: Timeline, iteration: Iteration) -> Mask:
    """Rows that are alive when the backward begins and not after it: autograd lets go of them, nobody else holds them.

    Where the trace ends before the backward does, all that are alive then count.
    """
    alive = timeline.death > iteration.backward_start - 0.5
    if iteration.end >= timeline.events:
        return alive
    return alive & (timeline.death < iteration.end + 0.5)


def saved_rows(timeline: Timeline, iteration: Iteration) -> Mask:
    """Activations of this iteration that are kept for its backward."""
    born = (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
    return activation_rows(timeline) & born & for_backward(timeline, iteration)


def block_passes(timeline: Timeline, paths: Sequence[str]) -> tuple[BlockPass, ...]:
    """The calls of the blocks at `paths`, in the order of the forward, iteration by iteration."""
    found = []
    order = np.argsort(timeline.birth, kind="stable")
    births = timeline.birth[order]
    activation = activation_rows(timeline)
    under = {path: timeline.under(path) for path in paths}
    for iteration in iterations(timeline):
        for path, mine in under.items():
            inside = mine & activation & (timeline.phase != -1)
            inside &= (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
            rows = np.flatnonzero(inside)
            if len(rows):
                rows = rows[np.argsort(timeline.birth[rows], kind="stable")]
                found.append(_pass(timeline, path, iteration, rows, births, mine))
    return tuple(sorted(found, key=lambda each: (each.iteration.start, each.start)))


def _pass(
    timeline: Timeline,
    path: str,
    iteration: Iteration,
    rows: NDArray[np.intp],
    births: NDArray[np.float64],
    mine: Mask,
) -> BlockPass:
    start, last = float(timeline.birth[rows[0]]), float(timeline.birth[rows[-1]])
    following = int(np.searchsorted(births, last, side="right"))
    end = float(births[following]) if following < len(births) else float(timeline.events)
    end = min(end, iteration.backward_start)
    death = timeline.death[rows]
    saved_later = rows[death > max(end, iteration.backward_start)]
    output = _returned(timeline, saved_later if len(saved_later) else rows[death > end])
    kept = rows[for_backward(timeline, iteration)[rows]]
    saved = kept[kept != output]
    backward_start = float("inf")
    if iteration.backward_start < timeline.events:
        freed = timeline.death[saved]
        freed = freed[(freed >= iteration.backward_start) & (freed < timeline.events)]
        made = timeline.birth[mine & (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)]
        candidates = np.concatenate([freed, made])
        if len(candidates):
            backward_start = float(candidates.min())
    return BlockPass(
        path=path,
        iteration=iteration,
        rows=rows,
        start=start,
        end=end,
        saved=saved,
        output=output,
        backward_start=backward_start,
    )


def _returned(timeline: Timeline, alive_after: NDArray[np.intp]) -> int:
    """Of what a block leaves alive, what goes first: the next block reads it, whose backward is before this one's.

    What the block saved for itself goes later; a result that its last operation saved too goes with that one.
    """
    if not len(alive_after):
        return -1
    first = alive_after[timeline.death[alive_after] == timeline.death[alive_after].min()]
    return int(first[timeline.size[first].argmax()])


def given_back(timeline: Timeline, death: NDArray[np.float64]) -> NDArray[np.float64]:
    """`death` of tensors that backward computes or fetches again: they go when their operation is done.

    A saved one waits until the engine has checked the results.

    Between the two lies what the engine adds up itself (a bias gradient over the rows, with its workspace).
    """
    work = sums_of_backward(timeline)
    if not len(work):
        return death
    births, deaths = np.sort(timeline.birth[work]), np.sort(timeline.death[work])
    last = np.searchsorted(deaths, death) - 1
    near = (last >= 0) & (death - deaths[np.maximum(last, 0)] <= ENGINE_EVENTS)
    first = np.searchsorted(births, death - 2 * ENGINE_EVENTS)
    start = births[np.minimum(first, len(births) - 1)] - 1.5
    return np.where(near & (start < death), start, death)


def sums_of_backward(timeline: Timeline) -> NDArray[np.intp]:
    """The staging of sums over rows that backward makes: what is made next, its semaphores, goes before it."""
    order = np.argsort(timeline.birth, kind="stable")
    birth, death, size = timeline.birth[order], timeline.death[order], timeline.size[order]
    inner = (birth[1:] == birth[:-1] + 1) & (death[1:] < death[:-1]) & (size[1:] < size[:-1])
    inner &= (death[:-1] - birth[:-1] < ENGINE_EVENTS) & timeline.is_phase(BACKWARD)[order][:-1]
    found: NDArray[np.intp] = order[:-1][inner]
    return found
