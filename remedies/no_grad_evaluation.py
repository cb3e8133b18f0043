"""Evaluate under `torch.no_grad()` (or `inference_mode`), so that nothing is saved for a backward that never comes.

Applies when: the peak is in a forward that no backward follows, and it keeps activations as a training forward does.
Saves: the activations that such a forward saves.
Costs: nothing; it is faster.
Numerics: identical.
Conflicts: no_grad must be active where the model runs: a generator or a thread that was started outside does not
have it.
Frameworks: a change in the script; Hugging Face and Lightning do it in their evaluation loops.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, NotApplicable, Numerics, Setting
from .passes import is_training, iterations, saved_rows
from .whatif_timeline import Mask, Timeline

NAME = "no-grad-evaluation"
NUMERICS = Numerics.IDENTICAL
LEAST_SHARE = 0.05  # of the peak


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
    order = np.sort(timeline.birth)
    death = timeline.death.copy()
    # an activation is read by the next operations and then dropped
    soon = np.searchsorted(order, timeline.birth[rows], side="right") + 4
    death[rows] = np.minimum(death[rows], order[np.minimum(soon, len(order) - 1)] + 0.5)
    held = int(timeline.size[rows].sum())
    return Change(
        setting=Setting(name=NAME, options={}),
        expected=timeline.copies(
            np.arange(len(timeline)), birth=timeline.birth, death=np.maximum(death, timeline.birth + 0.5)
        ),
        low=None,
        high=None,
        step_time_factor=Band(low=1.0, expected=1.0, high=1.0),
        numerics=NUMERICS,
        why=f"{size(held)} are saved by a forward that no backward follows",
    )


def _why_not(case: Case) -> str:
    timeline = case.timeline
    if not any(is_training(each, timeline) for each in iterations(timeline)):
        return "no backward is in the trace: what no_grad would free is estimated only beside training (see OOM011)"
    if case.profile.oom is not None:
        return "the trace ends in an out-of-memory: the last forward may have had its backward still to come"
    return "every forward of the trace is followed by a backward"


def _kept(case: Case) -> Mask:
    """Saved by the last forward of a trace that trained before and did not end in an out-of-memory."""
    timeline: Timeline = case.timeline
    found = np.zeros(len(timeline), np.bool_)
    passes = iterations(timeline)
    if case.profile.oom is not None or not any(is_training(each, timeline) for each in passes):
        return found
    for iteration in passes:
        if not is_training(iteration, timeline):
            found |= saved_rows(timeline, iteration)
    return found
