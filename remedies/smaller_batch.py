"""Train with a smaller batch.

Applies when: activations and inputs follow the batch and are a large share of the peak.
Saves: activations, inputs and backward's temporaries in proportion.
Costs: more steps for the same data; smaller kernels use the card less well, as with micro-batches.
Numerics: changed: another gradient noise and, for the same learning rate, another training. Accumulating gradients
keeps the batch. Identical where nothing is trained.
Conflicts: does nothing for parameters, gradients, optimizer state, workspaces, memory outside PyTorch, checkpoint
spikes; a leak is only postponed.
Frameworks: all: the batch size of the DataLoader; Hugging Face `per_device_train_batch_size`.
"""

from collections.abc import Mapping
from typing import Any

from .batch_scaling import with_batch
from .estimating import Case, Change
from .gradient_accumulation import step_time
from .interface import Effort, NotApplicable, Numerics, Setting
from .no_grad_evaluation import only_infers

NAME = "smaller-batch"
NUMERICS = Numerics.CHANGED
EFFORT = Effort.SETTING
UNKNOWN_BATCH = "the recording does not say how many samples a batch has: divide it where the script makes it"


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    """Halvings of the batch; of one that nothing tells, as parts of it."""
    batch = case.job.batch_size or case.facts.loader_batch_size
    if batch is None:
        return tuple(Setting(name=NAME, options={"divided_by": 2**k}) for k in (1, 2, 3))
    if batch < 2:
        return NotApplicable(NAME, "the batch has one sample")
    sizes = list(dict.fromkeys(max(1, batch // 2**k) for k in (1, 2, 3)))
    return tuple(Setting(name=NAME, options={"batch_size": size}) for size in sizes)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    batch = case.job.batch_size or case.facts.loader_batch_size
    if batch is None and "divided_by" not in options:
        return NotApplicable(NAME, "no torch DataLoader with a batch size was seen")
    if batch is not None and "batch_size" in options:
        divisor, fewer = batch / int(options["batch_size"]), f"{options['batch_size']} instead of {batch}"
    else:
        divisor, fewer = int(options["divided_by"]), f"{options['divided_by']} times fewer"
    by_hand = "" if "batch_size" in options else UNKNOWN_BATCH
    infers = only_infers(case)
    return Change(
        setting=Setting(name=NAME, options=dict(options)),
        expected=with_batch(case.timeline, 1 / divisor, case.job.gpu),
        low=None,
        high=None,
        step_time_factor=step_time(divisor),
        numerics=Numerics.IDENTICAL if infers else NUMERICS,
        why=f"activations and inputs of {fewer} samples; "
        + ("the same results, in more calls" if infers else "another training, with more steps")
        + (f"; {by_hand}" if by_hand else ""),
        by_hand=by_hand,
        time_doubt="for the same samples: none where the kernels stay large, 8 % a halving where they do not",
    )
