"""Let gradients go after the step: `zero_grad(set_to_none=True)`, called before the next forward.

Applies when: gradients of the step before are alive while the next forward runs: they are zeroed in place
(`set_to_none=False`, the default before torch 2.0), or cleared only after the forward.
Saves: all gradients during forward, when activations are added up.
Costs: nothing; a fill with zeros is not done.
Numerics: identical; parameters without a gradient in a step are then not touched by it (no decay, no momentum).
Conflicts: gradients accumulated over several backwards have to stay; hooks and code that read `.grad` before backward.
Frameworks: `optimizer.zero_grad()` right after `optimizer.step()`; Hugging Face, Lightning and accelerate do it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import Iteration, accumulates, is_training, iterations
from .whatif_timeline import BACKWARD, OPTIMIZER, Mask, Timeline

NAME = "set-to-none"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REPAIR


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    timeline = case.timeline
    training = [each for each in iterations(timeline) if is_training(each, timeline)]
    if not any(run.phase == OPTIMIZER for run in timeline.runs) or accumulates(training):
        return NotApplicable(NAME, "no optimizer step follows each backward: gradients have to wait")
    if not any(_waiting(timeline, each).any() for each in training):
        return NotApplicable(NAME, "no gradient of an earlier step is alive in a forward")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    """Old gradients end with the step before; those that stay for good are made again in each backward."""
    timeline = case.timeline
    training = [each for each in iterations(timeline) if is_training(each, timeline)]
    death = timeline.death.copy()
    parts: list[Timeline] = []
    most = 0
    for iteration in training:
        rows = np.flatnonzero(_waiting(timeline, iteration))
        if not len(rows):
            continue
        most = max(most, int(timeline.size[rows].sum()))
        kept = rows[timeline.death[rows] > iteration.backward_start]
        death[rows] = np.minimum(death[rows], max(_end_of_step(timeline, iteration.start), 0.0))
        order = np.argsort(-timeline.birth[kept], kind="stable")
        span = iteration.end - iteration.backward_start
        share = (np.argsort(order) + 0.5) / max(1, len(kept))
        births = iteration.backward_start + span * (1 - share)
        parts.append(timeline.copies(kept, birth=births, death=timeline.death[kept], phase=BACKWARD))
    death = np.maximum(death, timeline.birth)
    moved = timeline.with_death(death)
    new = moved.joined(*(_until_next(part, timeline, training) for part in parts))
    return Change(
        setting=Setting(name=NAME),
        expected=new,
        low=None,
        high=None,
        step_time_factor=Band(low=0.98, expected=1.0, high=1.0),
        numerics=NUMERICS,
        why=f"{size(most)} of gradients of the step before are not there while the next forward runs",
    )


def _waiting(timeline: Timeline, iteration: Iteration) -> Mask:
    """Gradients from before this forward that it finds alive, and that last into it."""
    alive = (timeline.birth < iteration.start) & (timeline.death > iteration.start)
    return timeline.is_category(Category.GRADIENT) & alive


def _end_of_step(timeline: Timeline, before: float) -> float:
    """The end of the last optimizer step before a time; that time itself where none is in the trace."""
    ends = [run.end for run in timeline.runs if run.phase == OPTIMIZER and run.end <= before]
    return max(ends, default=before) if ends else before


def _until_next(part: Timeline, timeline: Timeline, training: list[Iteration]) -> Timeline:
    """Made again in one backward, they end before the next forward."""
    starts = np.array([each.start for each in training] + [np.inf])
    following = starts[np.searchsorted(starts, part.birth, side="right")]
    ends = np.array([_end_of_step(timeline, float(start)) if np.isfinite(start) else start for start in following])
    ends = np.maximum(ends, part.birth)
    return part.with_death(np.minimum(part.death, ends))
