"""Let FSDP gather at most two units ahead of the computation.

Applies when: FSDP's gathered units pile up at the peak: the host runs ahead of the card, and each gather it issues
takes its memory at once.
Saves: what the units beyond the second hold.
Costs: the host waits; nothing where a unit's computation takes longer than the next one's gather.
Numerics: identical.
Conflicts: prefetching more (`set_modules_to_forward_prefetch`, `backward_prefetch=BACKWARD_PRE`) is the opposite.
Frameworks: FSDP1 `limit_all_gathers=True` (the default since torch 2.0); FSDP2 waits by itself unless told to
prefetch; DeepSpeed `stage3_max_live_parameters`, `stage3_prefetch_bucket_size`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .whatif_timeline import Mask, Timeline

NAME = "limit-all-gathers"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.SETTING
LEAST_SHARE = 0.25  # of the largest gather, for a row to be one
AT_ONCE = 4  # rows: a flat buffer and the parameters copied out of it, for two units


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not case.facts.sharded:
        return NotApplicable(NAME, "the parameters are not sharded")
    if len(_extra(case.timeline)) == 0:
        return NotApplicable(NAME, "no more than two units are gathered at a time")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    extra = _extra(case.timeline)
    if not len(extra):
        return NotApplicable(NAME, "no more than two units are gathered at a time")
    rows: Mask = np.zeros(len(case.timeline), np.bool_)
    rows[extra] = True
    return Change(
        setting=Setting(name=NAME),
        expected=case.timeline.without(rows),
        low=None,
        high=None,
        step_time_factor=Band(low=1.0, expected=1.0, high=1.08),
        numerics=NUMERICS,
        why=f"{len(extra)} gathered buffers, {size(int(case.timeline.size[extra].sum()))}, are made later",
        doubt="those that wait are left out of the peak, as if their turn came after it",
        time_doubt="the host waits where a gather is slower than a unit's computation",
    )


def _extra(timeline: Timeline) -> NDArray[np.intp]:
    """Of the gathers alive at the peak, the youngest beyond those of two units."""
    peak = timeline.peak()
    alive = timeline.is_category(Category.COMMUNICATION) & (timeline.birth <= peak.time) & (timeline.death > peak.time)
    rows = np.flatnonzero(alive)
    if not len(rows):
        return rows
    rows = rows[timeline.size[rows] >= LEAST_SHARE * timeline.size[rows].max()]
    youngest: NDArray[np.intp] = rows[np.argsort(timeline.birth[rows], kind="stable")][AT_ONCE:]
    return youngest
