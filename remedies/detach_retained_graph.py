"""Drop what is kept of past steps: `.item()` or `.detach()` where a loss or an output is stored.

Applies when: activations of finished steps are still alive, and more so with each step: something (a running loss, a
list of outputs, a metric) holds a tensor with its autograd graph.
Saves: everything that such tensors kept alive.
Costs: nothing; `.item()` waits for the GPU once.
Numerics: identical: the graph was not used.
Conflicts: none. A smaller batch only postpones the failure.
Frameworks: a change in the script, at the line that the diagnosis names.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .whatif_timeline import FORWARD, OTHER, Mask, Timeline

NAME = "detach-retained-graph"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REPAIR
LEAST_SHARE = 0.02  # of the peak


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    rows = _retained(case.timeline)
    held = int(case.timeline.size[rows].sum())
    if held < LEAST_SHARE * max(1, case.timeline.peak().bytes):
        return NotApplicable(NAME, "no activations outlive the step after theirs")
    return (Setting(name=NAME, options={}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    timeline = case.timeline
    rows = _retained(timeline)
    if not rows.any():
        return NotApplicable(NAME, "no activations outlive the step after theirs")
    death = timeline.death.copy()
    ends = _step_ends(timeline)
    for row in np.flatnonzero(rows).tolist():
        death[row] = ends.get(int(timeline.step[row]), timeline.death[row])
    held = int(timeline.size[rows].sum())
    steps = len(np.unique(timeline.step[rows]))
    return Change(
        setting=Setting(name=NAME, options={}),
        expected=timeline.copies(
            np.arange(len(timeline)), birth=timeline.birth, death=np.maximum(death, timeline.birth + 0.5)
        ),
        low=None,
        high=None,
        step_time_factor=Band(low=1.0, expected=1.0, high=1.01),
        numerics=NUMERICS,
        why=f"{size(held)} of activations of {steps} finished steps are kept by stored tensors",
    )


def _step_ends(timeline: Timeline) -> dict[int, float]:
    ends: dict[int, float] = {}
    for run in timeline.runs:
        ends[run.step] = max(run.end, ends.get(run.step, 0.0))
    return ends


def _retained(timeline: Timeline) -> Mask:
    """Activations that are alive when the step after their own has ended."""
    ends = _step_ends(timeline)
    if len(ends) < 2:
        return np.zeros(len(timeline), np.bool_)
    limit = np.array([ends.get(step + 1, np.inf) for step in timeline.step.tolist()])
    activation = timeline.is_category(Category.ACTIVATION) & timeline.is_phase(FORWARD, OTHER)
    return activation & (timeline.step > 0) & (timeline.birth >= 0) & (timeline.death >= limit)
