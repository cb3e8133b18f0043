"""Keep the optimizer's moments in 8 bits instead of 32 or 16, block by block with a scale of their own.

Applies when: the optimizer's state is a large share of the peak (Adam: two moments of each parameter).
Saves: three quarters of float32 moments, half of those in bfloat16, less 4 bytes for each block of 256 values; and
what a foreach step keeps beside them. Moments of fewer than 4,096 values stay as they are.
Costs: little: -9 to +1.4 % of the speed in published runs (torchtune, torchao).
Numerics: equivalent: the same update from moments rounded in each step; the loss curves published are alike.
Conflicts: none with sharding; a checkpoint of the state holds other tensors than before.
Frameworks: bitsandbytes `AdamW8bit`, torchao `AdamW8bit`; Hugging Face `optim: adamw_bnb_8bit`; torchtune
`bitsandbytes.optim.PagedAdamW8bit`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .whatif_timeline import OPTIMIZER, Mask, Timeline

NAME = "eight-bit-optimizer"
NUMERICS = Numerics.EQUIVALENT
EFFORT = Effort.LINES
BLOCK = 256  # values with one float32 scale: bitsandbytes and torchao for 8-bit moments
LEAST_VALUES = 4096  # of a tensor, to be held in 8 bits: `min_8bit_size`, torchao's `tensor_size` limit
STEP_TIME = Band(low=0.98, expected=1.04, high=1.10)  # 1.049 torchtune 3B, 0.986 ViT-H, 1.10 Llama-2-7B (torchao)
WITH_MOMENTS = ("Adam", "AdamW", "SGD", "RMSprop", "NAdam", "Adamax")


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not _moments(case).any():
        return NotApplicable(NAME, "no optimizer state large enough to be held in 8 bits is in the trace")
    first = next(iter(case.facts.optimizers), None)
    if first is not None and first.name not in WITH_MOMENTS:
        return NotApplicable(NAME, f"no 8-bit form of {first.name} is in use")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    timeline = case.timeline
    rows = _moments(case)
    if not rows.any():
        return NotApplicable(NAME, "no optimizer state large enough to be held in 8 bits is in the trace")
    item = _item_bytes(case)
    factor = (1 + 4 / BLOCK) / item
    new = _without_step_temporaries(timeline.resized(rows, factor))
    saved = round(float(timeline.size[rows & (timeline.death >= timeline.events)].sum()) * (1 - factor))
    return Change(
        setting=Setting(name=NAME),
        expected=new,
        low=None,
        high=None,
        step_time_factor=STEP_TIME,
        numerics=NUMERICS,
        why=f"moments of {item} bytes a value take 1, with a scale for each {BLOCK}: {size(saved)} less",
        doubt="that the moments have the parameters' type is read from their sizes" if case.facts.inferred else "",
        time_doubt="published runs differ by that much",
    )


def _item_bytes(case: Case) -> int:
    """Bytes of one value of a moment: as of the parameters, whose sizes the moments share."""
    return max(1, case.facts.parameter_bytes // max(1, case.facts.parameter_count)) if case.facts.known else 4


def _moments(case: Case) -> Mask:
    timeline = case.timeline
    return timeline.is_category(Category.OPTIMIZER_STATE) & (timeline.size >= LEAST_VALUES * _item_bytes(case))


def _without_step_temporaries(timeline: Timeline) -> Timeline:
    """One kernel a parameter: nothing of a foreach step is left."""
    rows = timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
    return timeline.take(np.flatnonzero(~rows))
