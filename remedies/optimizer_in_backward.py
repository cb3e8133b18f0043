"""Step each parameter as soon as backward has made its gradient, and let the gradient go at once.

Applies when: gradients are a large share of the peak, and one backward makes a step (no accumulation).
Saves: all gradients but one parameter's at a time, and a foreach step's temporaries; not where the peak is in forward,
when last step's gradients are gone anyway.
Costs: nothing measured; many small steps instead of a few large kernels (torchtune: -7 % memory, no slower).
Numerics: identical, as long as nothing reads all gradients: no clipping by their norm, no scaler.
Conflicts: gradient accumulation, clip_grad_norm_, GradScaler, DDP's buckets.
Frameworks: torch `register_post_accumulate_grad_hook`; torchtune `optimizer_in_bwd: True`; LOMO, GaLore and
Hugging Face `optim: galore_adamw_layerwise` work so.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import accumulates, is_training, iterations
from .whatif_timeline import BACKWARD, OPTIMIZER

NAME = "optimizer-in-backward"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES
EVENTS_OF_A_STEP = 6.0  # from a gradient's birth to the end of its parameter's own step


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    timeline = case.timeline
    training = [each for each in iterations(timeline) if is_training(each, timeline)]
    if not training or not timeline.is_category(Category.GRADIENT).any():
        return NotApplicable(NAME, "no backward that makes gradients is in the trace")
    if not any(run.phase == OPTIMIZER for run in timeline.runs):
        return NotApplicable(NAME, "no optimizer step is in the trace")
    if accumulates(training):
        return NotApplicable(NAME, "several backwards make one step: gradients have to wait for the last")
    if _clips(case):
        return NotApplicable(NAME, "clip_grad_norm_ reads all gradients before the step")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    timeline = case.timeline
    gradient = timeline.is_category(Category.GRADIENT) & (timeline.birth >= 0)
    rows = np.flatnonzero(gradient)
    death = timeline.death.copy()
    death[rows] = np.minimum(death[rows], timeline.birth[rows] + EVENTS_OF_A_STEP)
    temporary = timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
    held = timeline.take(rows).peak().bytes
    shorter = timeline.with_death(death).without(temporary)
    # a parameter's own step makes what the whole one made for it
    share = timeline.take(np.flatnonzero(temporary)).peak().bytes / max(1, held)
    own = [
        (int(timeline.size[row] * share), float(timeline.birth[row]) + 0.5, float(death[row]) - 0.1)
        for row in rows.tolist()
    ]
    shorter = shorter.added(own, category=Category.TEMPORARY, phase=BACKWARD)
    return Change(
        setting=Setting(name=NAME),
        expected=shorter,
        low=None,
        high=None,
        step_time_factor=Band(low=0.95, expected=1.0, high=1.08),
        numerics=NUMERICS,
        why=f"of {size(held)} of gradients one parameter's at a time is there",
        time_doubt="small steps overlap with backward or wait for each other",
    )


def _clips(case: Case) -> bool:
    return any(frame.name.startswith("clip_grad") for frame in case.profile.snapshot.stacks.frames)
