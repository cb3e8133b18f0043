"""Compute attention without its scores in memory: torch's scaled_dot_product_attention, or FlashAttention.

Applies when: a softmax inside the model saves a result that is larger than everything around it: attention scores,
of the size of the sequence's square.
Saves: in each layer the scores, their softmax and its dropout, and the same again in backward; a row sum stays.
Costs: less time: the scores do not travel to memory and back.
Numerics: equivalent: the same mathematics in another order, as other kernels differ.
Conflicts: code that returns or changes attention weights; masks other than causal take torch's memory-efficient
kernel, which also keeps no scores; FlashAttention itself needs half precision.
Frameworks: `torch.nn.functional.scaled_dot_product_attention`; Hugging Face `attn_implementation="sdpa"` or
`"flash_attention_2"`; Axolotl `flash_attention: true`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import activation_rows, is_training, iterations, saved_rows
from .structure.sources import source_line
from .whatif_timeline import BACKWARD, Mask

NAME = "flash-attention"
NUMERICS = Numerics.EQUIVALENT
EFFORT = Effort.SETTING
LEAST_SHARE = 0.005  # of the peak, that the scores of one layer take


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    rows, largest = _scores(case)
    if not rows.any():
        return NotApplicable(NAME, "no softmax inside the model saves scores")
    if int(case.timeline.size[rows].max()) < LEAST_SHARE * case.timeline.peak().bytes:
        return NotApplicable(NAME, f"the scores of a layer take only {size(largest)}")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    rows, largest = _scores(case)
    if not rows.any():
        return NotApplicable(NAME, "no softmax inside the model saves scores")
    new = case.timeline.without(rows)
    saved = int(case.timeline.size[rows & activation_rows(case.timeline)].sum())
    count = max(1, len([i for i in iterations(case.timeline) if is_training(i, case.timeline)]))
    return Change(
        setting=Setting(name=NAME),
        expected=new,
        low=None,
        high=None,
        step_time_factor=Band(low=0.6, expected=0.85, high=1.0),
        numerics=NUMERICS,
        why=f"scores of {size(largest)} and what is made of them, {size(saved // count)} in a step, are not kept",
        doubt="the row sums that the kernel keeps instead are left out",
        time_doubt="it depends on how much of a step is attention",
    )


def _scores(case: Case) -> tuple[Mask, int]:
    """Rows of the scores' size (and their dropout's mask) in the forward and in backward, and that size."""
    timeline = case.timeline
    stacks = case.profile.snapshot.stacks
    softmax = np.array([_is_softmax(case, i) for i in range(len(stacks.stacks))] + [False], np.bool_)
    found = np.zeros(len(timeline), np.bool_)
    largest = 0
    for iteration in iterations(timeline):
        made = saved_rows(timeline, iteration) & softmax[timeline.stack] & (timeline.module >= 0)
        made &= timeline.is_phase("forward")
        if not made.any():
            continue
        sizes, counts = np.unique(timeline.size[made], return_counts=True)
        score = int(sizes[counts.argmax()])
        if counts.max() < 2:
            continue  # one softmax: of a classifier or a router
        largest = max(largest, score)
        inside = (timeline.birth >= iteration.start) & (timeline.birth < iteration.end)
        mask = timeline.size == score // 4  # a dropout's booleans beside four bytes of each score
        alike = (timeline.size == score) | (mask & saved_rows(timeline, iteration))
        forward = activation_rows(timeline) & inside & (timeline.module >= 0)
        back = timeline.is_category(Category.TEMPORARY, Category.ACTIVATION) & timeline.is_phase(BACKWARD) & inside
        found |= alike & (forward | back)
    return found, largest


def _is_softmax(case: Case, stack: int) -> bool:
    for frame in case.profile.snapshot.stacks.of(stack)[:3]:
        if frame.name == "softmax" or "softmax" in source_line(frame):
            return True
        if frame.name in ("_call_impl", "_wrapped_call_impl"):
            return False
    return False
