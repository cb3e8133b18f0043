"""Hold the whole model in bfloat16: parameters, gradients, optimizer state and activations take 2 bytes a value.

Applies when: the parameters are float32, on a card with bfloat16 (sm_80 and later).
Saves: half of parameters, gradients, optimizer state and of what is computed; not what the script casts to float32
itself (norms written so, `logits.float()`), nor masks and indices.
Costs: less time: what products take in autocast, and half of the optimizer's traffic.
Numerics: changed: updates much smaller than a weight are rounded away; published fine-tunings do it, trainings from
scratch keep float32 copies (mixed precision), stochastic rounding or Kahan summation.
Conflicts: instead of mixed precision, not beside it; a GradScaler is not needed.
Frameworks: `model.to(torch.bfloat16)`; torchtune `dtype: bf16`; Lightning `precision: bf16-true`; Hugging Face
`dtype=torch.bfloat16` in from_pretrained.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from .autocast_rows import casts_itself, kinds_of
from .costs.links import card
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .mixed_precision import STEP_TIME, loss_cast, masks_of
from .passes import activation_rows
from .whatif_timeline import Mask, Timeline

NAME = "bf16-parameters"
NUMERICS = Numerics.CHANGED
EFFORT = Effort.LINES


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not case.facts.known:
        return NotApplicable(NAME, "nothing in the snapshot says how the model is built: record it with `oomdoc run`")
    if not case.facts.bytes_of_dtype.get("float32"):
        known = case.facts.bytes_of_dtype
        return NotApplicable(NAME, "the parameters are not float32" if known else "no parameters are known here")
    spec = card(case.job.gpu)
    if spec is not None and "bf16" not in spec.flops:
        return NotApplicable(NAME, f"{spec.title} has no bfloat16")
    if case.facts.gathered_dtype in ("bfloat16", "float16"):
        return NotApplicable(
            NAME, f"FSDP gathers the parameters in {case.facts.gathered_dtype}: it computes in that type"
        )
    if case.facts.autocast or case.autocast:
        return NotApplicable(NAME, "the forward runs under autocast: its activations have 2 bytes already")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    if case.autocast:
        return NotApplicable(NAME, "mixed precision is among the changes already")
    state = _of_state(case.timeline)
    kinds = kinds_of(case.timeline, case.facts.class_of, case.profile.snapshot.stacks)
    computed, kept = _computed(case, kinds)
    new, loss = loss_cast(case.timeline, case.timeline, kinds, case, autocast=False)
    rows = np.zeros(len(new), np.bool_)
    rows[: len(loss)] = state | (computed & ~kept & ~loss)
    expected = new.resized(rows, 0.5)
    return Change(
        setting=Setting(name=NAME),
        expected=expected,
        low=case.timeline.resized(state | computed, 0.5),
        high=None,
        step_time_factor=STEP_TIME,
        numerics=NUMERICS,
        why="parameters, gradients, optimizer state and what is computed take 2 bytes instead of 4",
        doubt="what the script's own lines cast to float32 is read from their text",
        time_doubt="published runs took 0.42 to 0.85 of the time, by how much of it are products",
    )


def _of_state(timeline: Timeline) -> Mask:
    """Whatever follows the parameters' type; a scalar stays what it is."""
    rows = timeline.is_category(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.BUFFER)
    return rows & (timeline.size > 8)


def _computed(case: Case, kinds: NDArray[np.int8]) -> tuple[Mask, Mask]:
    """What is computed in floats of the model, and of that what stays float32 by the script's own cast."""
    timeline = case.timeline
    activation = activation_rows(timeline)
    masks = masks_of(timeline, kinds, activation)
    made = timeline.is_category(Category.ACTIVATION, Category.TEMPORARY) & ~masks
    stacks = case.profile.snapshot.stacks
    casts = np.array([casts_itself(stacks, i) for i in range(len(stacks.stacks))] + [False], np.bool_)
    kept: Mask = casts[timeline.stack]
    return made, kept
