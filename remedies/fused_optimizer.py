"""Step with `fused=True` (or `foreach=False`): the default multi-tensor step makes temporaries of the parameters' size.

Applies when: the peak is in the optimizer step and the optimizer runs its multi-tensor (foreach) code, the default.
Saves: the temporaries of the step: about one copy of the parameters.
Costs: nothing: the fused kernel is as fast or faster; `foreach=False` is slower with many small parameters.
Numerics: identical up to rounding inside the kernel.
Conflicts: fused exists for Adam, AdamW, SGD and Adagrad on floating parameters; else use foreach=False.
Frameworks: `torch.optim.AdamW(..., fused=True)`; Hugging Face `optim: adamw_torch_fused`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .whatif_timeline import OPTIMIZER, Mask, Timeline

NAME = "fused-optimizer"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.SETTING
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    rows = _temporaries(case.timeline)
    if not rows.any():
        return NotApplicable(NAME, "the optimizer step makes no temporaries")
    first = next(iter(case.facts.optimizers), None)
    if first is not None and (first.fused or first.foreach is False):
        return NotApplicable(
            NAME, f"{first.name} steps with {'fused=True' if first.fused else 'foreach=False'} already"
        )
    fused = first is None or first.name in FUSED
    return (Setting(name=NAME, options={"fused": True} if fused else {"foreach": False}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    timeline = case.timeline
    rows = _temporaries(timeline)
    if not rows.any():
        return NotApplicable(NAME, "the optimizer step makes no temporaries")
    inside = timeline.take(np.flatnonzero(rows)).peak().bytes
    new = timeline.without(rows)
    if not options.get("fused"):
        sizes = timeline.size[timeline.is_category(Category.PARAMETER)]
        share = int(sizes.max()) / max(1, int(sizes.sum())) if len(sizes) else 1.0
        spans = [(int(inside * share), run.start, run.end - 0.5) for run in timeline.runs if run.phase == OPTIMIZER]
        new = new.added(spans, category=Category.TEMPORARY, phase=OPTIMIZER)
    what = "fused=True" if options.get("fused") else "foreach=False"
    return Change(
        setting=Setting(name=NAME, options=dict(options)),
        expected=new,
        low=None,
        high=None,
        step_time_factor=Band(low=0.95, expected=1.0, high=1.0 if options.get("fused") else 1.1),
        numerics=NUMERICS,
        why=f"{size(inside)} of temporaries in optimizer.step go with {what}",
    )


def _temporaries(timeline: Timeline) -> Mask:
    return timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
