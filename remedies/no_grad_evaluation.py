"""Evaluate under `torch.no_grad()` (or `inference_mode`), so that nothing is saved for a backward that never comes.

Applies when: the peak is in a forward that no backward follows, and it keeps activations as a training forward does:
in evaluation beside training, or in a job that only infers, also one that runs out of memory.
Saves: the activations that such a forward saves; what it returns stays for as long as it is held.
Costs: nothing; it is faster.
Numerics: identical.
Conflicts: no_grad must be active where the model runs: a generator or a thread that was started outside does not
have it.
Applied at run time to models that are called in eval mode, and refused where such a model is being trained.
Frameworks: a change in the script; Hugging Face and Lightning do it in their evaluation loops.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .key_value_cache import kept_by_a_cache
from .passes import is_training, iterations, saved_rows, trains
from .whatif_timeline import FORWARD, Mask, Run, Timeline

NAME = "no-grad-evaluation"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REPAIR
LEAST_SHARE = 0.05  # of the peak
READ_BY = 5  # allocations after its own, at most, that read an activation


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    rows = _kept(case)
    if not rows.any():
        return NotApplicable(NAME, _why_not(case))
    if int(case.timeline.size[rows].sum()) < LEAST_SHARE * case.timeline.peak().bytes:
        return NotApplicable(NAME, "a forward without backward keeps next to nothing")
    return (Setting(name=NAME, options={}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    timeline, rows = case.timeline, _kept(case)
    if not rows.any():
        return NotApplicable(NAME, _why_not(case))
    inference = only_infers(case)
    low = high = None
    doubt = ""
    end = _read_by(timeline, rows, READ_BY)
    if inference:
        held_by_frames = np.where(rows, np.maximum(end, _block_ends(case)), np.inf)
        inputs = _inputs_held(timeline)
        end = np.minimum(_read_by(timeline, rows, READ_BY // 2), inputs)
        low = _ending(timeline, np.minimum(_read_by(timeline, rows, 1), _inputs_held(timeline, since=0.0)))
        high = _ending(timeline, held_by_frames)
        doubt = "what a forward returns is taken to be the last tensor that it makes"
        if np.isfinite(inputs).any():
            doubt += ", and inputs to be held by the graph alone"
    held = int(timeline.size[rows].sum())
    return Change(
        setting=Setting(name=NAME, options={}),
        expected=_ending(timeline, end),
        low=low,
        high=high,
        step_time_factor=Band(low=1.0, expected=1.0, high=1.0),
        numerics=NUMERICS,
        why=f"{size(held)} are saved by {'forwards' if inference else 'a forward'} that no backward follows",
        doubt=doubt,
    )


def _read_by(timeline: Timeline, rows: Mask, allocations: int) -> NDArray[np.float64]:
    """By row: when it is dropped, read by so many of the next allocations; inf where it is not of `rows`."""
    order = np.sort(timeline.birth)
    soon = np.searchsorted(order, timeline.birth[rows], side="right") + allocations - 1
    end = np.full(len(timeline), np.inf)
    end[rows] = order[np.minimum(soon, len(order) - 1)] + 0.5
    return end


def _ending(timeline: Timeline, end: NDArray[np.float64]) -> Timeline:
    """No row lives longer than its `end`."""
    death = np.maximum(np.minimum(timeline.death, end), timeline.birth + 0.5)
    return timeline.with_death(death)


def _why_not(case: Case) -> str:
    timeline = case.timeline
    if trains(case.timeline):
        if _cut_in_training(case):
            return "the trace ends in an out-of-memory: the last forward may have had its backward still to come"
        return "every forward of the trace is followed by a backward"
    if not _forwards(timeline):
        return "no forward of a model is in the trace"
    if not only_infers(case):
        return "no backward is in the trace, but one may have been still to come: it was cut off, or had an optimizer"
    return "the forwards of the trace keep nothing but what they return"


def _cut_in_training(case: Case) -> bool:
    """The trace ends in an out-of-memory, and nothing says that the last forward was an evaluation's.

    What says so is that every model was in eval mode then.
    """
    return case.profile.oom is not None and case.facts.training_mode is not False


def only_infers(case: Case) -> bool:
    """Forwards, and no sign that a backward was to come: a recording that was cut needs a complete one before."""
    timeline = case.timeline
    if trains(case.timeline) or case.facts.optimizers:
        return False
    if timeline.is_category(Category.GRADIENT, Category.OPTIMIZER_STATE).any():
        return False
    recording = case.profile.snapshot.recording
    cut = case.profile.oom is not None or (recording is not None and "ended" in recording.facts)
    return len(_forwards(timeline)) > int(cut)


def _forwards(timeline: Timeline) -> list[Run]:
    return [run for run in timeline.runs if run.phase == FORWARD]


def _kept(case: Case) -> Mask:
    """What a graph keeps without need; what a key-value cache keeps is there to be read again."""
    return _saved(case) & ~kept_by_a_cache(case)


def _saved(case: Case) -> Mask:
    """Saved by a forward that no backward follows.

    Of pure inference, and of an evaluation in eval mode at the end, what outlives its forward, the output (its last
    tensor) not among them. Beside training, what the last forward saved, unless an out-of-memory ended the trace while
    a model was in training mode.
    """
    timeline: Timeline = case.timeline
    found = np.zeros(len(timeline), np.bool_)
    if only_infers(case):
        for run in _forwards(timeline):
            found[_outliving(timeline, run)[:-1]] = True
        return found
    if _cut_in_training(case) or not trains(case.timeline):
        return found
    if case.facts.training_mode is False:
        for run in _after_training(timeline):
            found[_outliving(timeline, run)[:-1]] = True
        return found
    for iteration in iterations(timeline):
        if not is_training(iteration, timeline):
            found |= saved_rows(timeline, iteration)
    return found


def _after_training(timeline: Timeline) -> list[Run]:
    """The forwards behind the last backward."""
    last = max(each.backward_start for each in iterations(timeline) if is_training(each, timeline))
    return [run for run in _forwards(timeline) if run.start > last]


def _outliving(timeline: Timeline, run: Run) -> NDArray[np.intp]:
    """Activations made in this forward that are alive when it ends, by birth."""
    born = (timeline.birth >= run.start) & (timeline.birth < run.end)
    rows = np.flatnonzero(timeline.is_category(Category.ACTIVATION) & born & (timeline.death >= run.end))
    return rows[np.argsort(timeline.birth[rows], kind="stable")]


def _inputs_held(timeline: Timeline, since: float | None = None) -> NDArray[np.float64]:
    """By row: the end of the forward after its own, for an input made between two forwards that outlives that; inf.

    What is made before the first forward may be a data set that stays; with `since` it is an input from there on.
    """
    end = np.full(len(timeline), np.inf)
    forwards = _forwards(timeline)
    starts = [forwards[0].start if since is None else since, *(run.end for run in forwards)]
    inputs = timeline.is_category(Category.INPUT)
    for start, own, after in zip(starts, forwards, forwards[1:], strict=False):
        held = inputs & (timeline.birth >= start) & (timeline.birth < own.start) & (timeline.death > after.end)
        end[held] = after.end
    return end


def _block_ends(case: Case) -> NDArray[np.float64]:
    """By row: the last birth inside the block, and the forward, that made it; the frames of a block may hold its input.

    Rows outside the repeated blocks: their own birth.
    """
    timeline = case.timeline
    end: NDArray[np.float64] = timeline.birth.copy()
    inside = [timeline.under(path) for path in case.facts.blocks]
    for run in _forwards(timeline):
        born = (timeline.birth >= run.start) & (timeline.birth < run.end)
        for mine in inside:
            rows = np.flatnonzero(born & mine)
            if len(rows):
                end[rows] = timeline.birth[rows].max() + 0.5
    return end
