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
from .estimating import Case, Change
from .interface import Band, NotApplicable, Numerics, Setting
from .passes import activation_rows, iterations
from .whatif_timeline import BACKWARD, Mask, Timeline

NAME = "chunked-loss"
NUMERICS = Numerics.IDENTICAL
CHUNKS = 8
LEAST_SHARE = 0.05  # of the peak


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    rows, logits = _logits(case.timeline)
    if logits == 0:
        return NotApplicable(NAME, "no activation of the loss has the size of the last layer's output")
    if int(case.timeline.size[rows].max()) < LEAST_SHARE * case.timeline.peak().bytes:
        return NotApplicable(NAME, f"the logits take only {logits / 2**20:.0f} MiB")
    return (Setting(name=NAME, options={"chunks": CHUNKS}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    chunks = int(options.get("chunks", CHUNKS))
    rows, logits = _logits(case.timeline)
    if logits == 0:
        return NotApplicable(NAME, "no activation of the loss has the size of the last layer's output")
    return Change(
        setting=Setting(name=NAME, options={"chunks": chunks}),
        expected=case.timeline.resized(rows, 1 / chunks),
        low=None,
        high=None,
        step_time_factor=Band(low=1.0, expected=1.03, high=1.10),
        numerics=NUMERICS,
        why=(
            f"logits of {logits / 2**30:.2f} GiB, their log-softmax and gradient exist for "
            f"1/{chunks} of the tokens at a time"
        ),
    )


def _logits(timeline: Timeline) -> tuple[Mask, int]:
    """Rows of the logits' size from the last layer's output to the end of backward's first part, and that size.

    The logits are the last output of a module before the loss, if the loss then makes something of its size.
    """
    found = np.zeros(len(timeline), np.bool_)
    size = 0
    activation = activation_rows(timeline)
    for iteration in iterations(timeline):
        inside = (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
        rows = np.flatnonzero(activation & inside)
        if not len(rows):
            continue
        largest = int(timeline.size[rows].max())
        same = rows[timeline.size[rows] == largest]
        # the loss's own rows come last; logits and log-softmax make at least two, after nine tenths of the forward
        ordered = np.sort(timeline.birth[rows])
        late = same[timeline.birth[same] >= ordered[int(0.9 * (len(ordered) - 1))]]
        if len(late) < 2:
            continue
        size = max(size, largest)
        found[late] = True
        back = timeline.is_category(Category.TEMPORARY, Category.ACTIVATION) & timeline.is_phase(BACKWARD)
        back &= (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
        found |= back & (timeline.size == largest)
    return found, size
