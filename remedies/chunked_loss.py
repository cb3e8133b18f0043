"""Project to the vocabulary and compute the loss in chunks of tokens, instead of all logits at once.

Applies when: the peak is around the loss: logits, their log-softmax and their gradient, each tokens x vocabulary.
Saves: all of them but one chunk's.
Costs: the output projection runs forward twice when chunks are recomputed; a fused kernel (Liger, cut cross-entropy)
does not. Measured with torchtune: memory -16 % of a 3B model's peak.
Numerics: identical up to the order of sums.
Conflicts: activation checkpointing does nothing for this peak; a script that reads the logits afterwards loses them.
Frameworks: torchtune's CEWithChunkedOutputLoss; Liger's fused linear cross-entropy (`use_liger_kernel: true` in
Hugging Face); in plain PyTorch a loop over `hidden.chunk(n)` with torch.utils.checkpoint.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .autocast_rows import kinds_of, last_product
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import activation_rows, iterations, saved_rows
from .whatif_timeline import BACKWARD, Mask

NAME = "chunked-loss"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES
CHUNKS = 8
LEAST_SHARE = 0.05  # of the peak


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    rows, logits = _logits(case)
    if logits == 0:
        return NotApplicable(NAME, "no activation of the loss has the size of the last layer's output")
    if int(case.timeline.size[rows].max()) < LEAST_SHARE * case.timeline.peak().bytes:
        return NotApplicable(NAME, f"the logits take only {size(logits)}")
    return (Setting(name=NAME, options={"chunks": CHUNKS}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    chunks = int(options.get("chunks", CHUNKS))
    rows, logits = _logits(case)
    if logits == 0:
        return NotApplicable(NAME, "no activation of the loss has the size of the last layer's output")
    return Change(
        setting=Setting(name=NAME, options={"chunks": chunks}),
        expected=case.timeline.resized(rows, 1 / chunks),
        low=None,
        high=None,
        step_time_factor=Band(low=1.0, expected=1.03, high=1.10),
        numerics=NUMERICS,
        why=(f"logits of {size(logits)}, their log-softmax and gradient exist for 1/{chunks} of the tokens at a time"),
    )


def _logits(case: Case) -> tuple[Mask, int]:
    """Rows of the logits' size from the last product on, with what backward makes of that size, and that size.

    Of twice the size as well, where logits in half precision are cast to float32 for the loss. Only where the loss
    makes something of these sizes and saves it (their log-softmax).
    """
    timeline = case.timeline
    found = np.zeros(len(timeline), np.bool_)
    size = 0
    if not case.facts.known:
        return found, size
    kinds = kinds_of(timeline, case.facts.class_of, case.profile.snapshot.stacks)
    for iteration in iterations(timeline):
        last = last_product(timeline, kinds, iteration)
        if last < 0:
            continue
        logits = int(timeline.size[last])
        same, cast = timeline.size == logits, timeline.size == 2 * logits
        inside = (timeline.birth >= timeline.birth[last]) & (timeline.birth < iteration.backward_start)
        made = activation_rows(timeline) & (same | cast) & inside
        saved = made & saved_rows(timeline, iteration) & (timeline.birth > timeline.birth[last])
        if not saved.any():
            continue
        size = max(size, int(timeline.size[saved].max()))
        back = timeline.is_category(Category.TEMPORARY, Category.ACTIVATION) & timeline.is_phase(BACKWARD)
        back &= (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
        halves = timeline.birth[back & same]  # the gradient is cast back: what is as large later is another's
        found |= made | (back & same)
        if (saved & cast).any() and len(halves):
            found |= back & cast & (timeline.birth <= halves.min())
    return found, size
