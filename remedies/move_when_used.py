"""Keep a model off the card while nothing calls it: `.to(device)` before its first use, `.to("cpu")` after its last.

Applies when: parameters on the card belong to models that nothing called: a text encoder whose outputs are stored, a
reference or teacher model, a model to be trained later, one that an evaluation left behind.
Saves: all parameters of those models.
Costs: a copy over PCIe each time such a model is wanted; nothing where it is not wanted at all.
Numerics: identical.
Conflicts: an optimizer that was given its parameters before they moved goes on with them: move it first.
Frameworks: plain code; diffusers `enable_model_cpu_offload()`; accelerate `cpu_offload_with_hook`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.call_sites import Lines
from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting

NAME = "move-when-used"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.REPAIR
LEAST_SHARE = 0.02  # of the peak
AGREEING = 0.02  # the rows of whole lines and the bytes that no called module owns differ by at most this share


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not case.facts.known or case.facts.inferred:
        return NotApplicable(NAME, "which models were called is not recorded: record it with `oomdoc run`")
    if case.facts.sharded:
        return NotApplicable(
            NAME, "the parameters are sharded: which of them are in use cannot be told from their bytes"
        )
    rows = _idle(case)
    if int(case.timeline.size[rows].sum()) < LEAST_SHARE * case.timeline.peak().bytes:
        return NotApplicable(NAME, "every model that lies on the card was called")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    rows = _idle(case)
    if not len(rows):
        return NotApplicable(NAME, "every model that lies on the card was called")
    gone = np.zeros(len(case.timeline), np.bool_)
    gone[rows] = True
    return Change(
        setting=Setting(name=NAME),
        expected=case.timeline.without(gone),
        low=None,
        high=None,
        step_time_factor=Band(low=1.0, expected=1.0, high=1.02),
        numerics=NUMERICS,
        why=f"{size(int(case.timeline.size[rows].sum()))} of parameters belong to models that nothing called",
        doubt="a model that is called later than the recording reaches comes back to the card",
    )


def _idle(case: Case) -> NDArray[np.intp]:
    """Parameters of whole lines of the script that together are what no called module owns; none where no lines are."""
    timeline, lines = case.timeline, Lines(case.profile.snapshot)
    at = timeline.peak().time
    mine = timeline.is_category(Category.PARAMETER) & (timeline.birth <= at) & (timeline.death > at)
    idle = int(timeline.size[mine].sum()) - case.facts.parameter_bytes
    by_line: dict[object, list[int]] = {}
    for row in np.flatnonzero(mine).tolist():
        by_line.setdefault(lines.of(int(timeline.stack[row])), []).append(row)
    found: list[int] = []
    for rows in sorted(by_line.values(), key=lambda each: -int(timeline.size[each].sum())):
        if int(timeline.size[found + rows].sum()) <= (1 + AGREEING) * idle:
            found += rows
    agrees = idle > 0 and int(timeline.size[found].sum()) >= (1 - AGREEING) * idle
    return np.array(found if agrees else [], np.intp)
