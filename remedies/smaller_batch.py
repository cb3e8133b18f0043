"""Train with a smaller batch.

Applies when: activations and inputs follow the batch and are a large share of the peak.
Saves: activations, inputs and backward's temporaries in proportion.
Costs: more steps for the same data; smaller kernels use the card less well, as with micro-batches.
Numerics: changed: another gradient noise and, for the same learning rate, another training. Accumulating gradients
keeps the batch.
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

NAME = "smaller-batch"
NUMERICS = Numerics.CHANGED
EFFORT = Effort.SETTING


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    batch = case.job.batch_size or case.facts.loader_batch_size
    if batch is None:
        return NotApplicable(NAME, "no torch DataLoader with a batch size was seen")
    if batch < 2:
        return NotApplicable(NAME, "the batch has one sample")
    sizes = list(dict.fromkeys(max(1, batch // 2**k) for k in (1, 2, 3)))
    return tuple(Setting(name=NAME, options={"batch_size": size}) for size in sizes)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    batch = case.job.batch_size or case.facts.loader_batch_size
    if batch is None:
        return NotApplicable(NAME, "no torch DataLoader with a batch size was seen")
    size = int(options["batch_size"])
    ratio = size / batch
    return Change(
        setting=Setting(name=NAME, options={"batch_size": size}),
        expected=with_batch(case.timeline, ratio, case.job.gpu),
        low=None,
        high=None,
        step_time_factor=step_time(batch / size),
        numerics=NUMERICS,
        why=f"activations and inputs of {size} instead of {batch} samples; another training, with more steps",
        time_doubt="for the same samples: none where the kernels stay large, 8 % a halving where they do not",
    )
