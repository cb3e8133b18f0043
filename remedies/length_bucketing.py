"""Put samples of like length into a batch, or fill batches by tokens: then no batch is much larger than the others.

Applies when: the forwards of the trace differ in what they save: the batch with the longest sequences makes the peak.
Saves: what the largest batch has above a batch of the mean size.
Costs: nothing a step; batches of like length waste less on padding, so an epoch takes fewer computed tokens.
Numerics: changed: other samples come together.
Conflicts: a peak that all batches reach; shuffling is within buckets.
Frameworks: Hugging Face `group_by_length: true`; torchtune and Axolotl sample packing (`sample_packing: true`);
fairseq `max_tokens`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.text import size
from .batch_scaling import scales_with_batch
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import Iteration, is_training, iterations, saved_rows
from .whatif_timeline import Timeline

NAME = "length-bucketing"
NUMERICS = Numerics.CHANGED
EFFORT = Effort.LINES
LEAST_ABOVE = 1.10  # of the mean, for the largest batch to stand out


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    saved = _saved(case.timeline)
    if len(saved) < 3:
        return NotApplicable(NAME, "fewer than three training steps are in the trace: lengths cannot be compared")
    mean, most = float(np.mean(list(saved.values()))), max(saved.values())
    if not most or most < LEAST_ABOVE * mean:
        return NotApplicable(NAME, "all batches of the trace save about as much")
    return (Setting(name=NAME, options={"token_budget": round(mean / most, 3)}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    saved = _saved(case.timeline)
    if not saved:
        return NotApplicable(NAME, "no training step is in the trace")
    mean, most = float(np.mean(list(saved.values()))), max(saved.values())
    new, flexible = case.timeline, scales_with_batch(case.timeline)
    for iteration, held in saved.items():
        if held > mean:
            inside = (case.timeline.birth >= iteration.start - 1) & (case.timeline.birth < iteration.end)
            new = new.resized(flexible & inside, mean / held)
    return Change(
        setting=Setting(name=NAME, options=dict(options)),
        expected=new,
        low=None,
        high=None,
        step_time_factor=Band(low=0.7, expected=0.95, high=1.0),
        numerics=NUMERICS,
        why=f"the largest of {len(saved)} batches saves {size(most)}, the mean {size(round(mean))}",
        doubt="longer samples than those of the trace may come",
        time_doubt="it depends on how much of a batch is padding",
    )


def _saved(timeline: Timeline) -> dict[Iteration, int]:
    """What each training forward saves."""
    return {
        each: int(timeline.size[saved_rows(timeline, each)].sum())
        for each in iterations(timeline)
        if is_training(each, timeline)
    }
