"""Run the batch in several micro-batches and let their gradients add up; step once for all of them.

Applies when: activations follow the batch and are a large share of the peak, and the batch has more than one sample.
oomdoc does it for batches from a torch DataLoader; a script that makes its own has to cut them itself.
Saves: activations, inputs and backward's temporaries of all but one micro-batch: they shrink to 1/m.
Costs: the gradients of all parameters are alive during every forward but the first; kernels run on smaller tensors
(measured: 4 micro-batches of 1 instead of a batch of 4: step time +14 %, bert-large on a V100).
Numerics: identical up to the order of sums, for a loss that is a mean (or a sum) over samples. Dropout draws other
masks. Not with batch normalisation (statistics of a micro-batch) or losses across samples (contrastive).
Conflicts: does nothing for parameters, optimizer state or a peak in the optimizer step. Under DDP or FSDP with
no_sync, unsharded gradients are kept and the peak can rise; oomdoc synchronises every micro-batch.
Frameworks: Hugging Face `gradient_accumulation_steps` with a smaller `per_device_train_batch_size`; DeepSpeed
`gradient_accumulation_steps` with `train_micro_batch_size_per_gpu`.
"""

import math
from collections.abc import Mapping
from typing import Any

from .batch_scaling import with_batch, with_gradients_waiting
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import trains

NAME = "gradient-accumulation"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.SETTING
MOST_MICRO_BATCHES = 32
BY_HAND = "no torch DataLoader was seen: the script has to cut its batch itself"
UNKNOWN_BATCH = 8  # a recording that does not say its batch is offered as many micro-batches; the batch may be smaller


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    """Powers of two up to the batch size."""
    batch = case.job.batch_size or case.facts.loader_batch_size
    cut = case.profile.oom is not None and bool(case.facts.optimizers)  # the backward was still to come
    if not cut and not trains(case.timeline):
        return NotApplicable(NAME, "no backward is in the trace, so there are no gradients to accumulate")
    counts = [2**k for k in range(1, 6) if 2**k <= min(batch or UNKNOWN_BATCH, MOST_MICRO_BATCHES)]
    if not counts:
        return NotApplicable(NAME, f"the batch has {batch} sample: it cannot be cut")
    return tuple(Setting(name=NAME, options={"micro_batches": m}) for m in counts)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    m = int(options["micro_batches"])
    batch = case.job.batch_size or case.facts.loader_batch_size
    largest = 1 / m if batch is None else math.ceil(batch / min(m, batch)) / batch
    new = with_gradients_waiting(with_batch(case.timeline, largest, case.job.gpu))
    numerics = Numerics.CHANGED if case.facts.batch_statistics else NUMERICS
    unknown = f"the recording does not say whether the batch has {m} samples" if batch is None else ""
    caveat = "; batch normalisation then sees micro-batches" if case.facts.batch_statistics else ""
    by_hand = BY_HAND if batch is None and not case.facts.inferred else ""
    return Change(
        setting=Setting(name=NAME, options={"micro_batches": m}),
        expected=new,
        low=None,
        high=None,
        step_time_factor=step_time(m),
        numerics=numerics,
        why=f"activations of {m} micro-batches exist one after the other; gradients wait for the last{caveat}"
        + (f"; {by_hand}" if by_hand else ""),
        doubt=unknown,
        by_hand=by_hand,
        time_doubt="none where the kernels stay large, 8 % a halving where they do not",
    )


def step_time(micro_batches: float) -> Band:
    """Bert-large, 4 x 1 against 4: 1.143 (transformers); nothing where the kernels stay large. For the same samples."""
    doublings = math.log2(micro_batches)
    return Band(low=1.0, expected=1 + 0.05 * doublings, high=1 + 0.08 * doublings)
