"""Shard gradients and optimizer state over the ranks (ZeRO-2); the parameters stay whole on each.

Applies when: there is more than one GPU, and gradients and optimizer state are a large share of the peak.
Saves: of both all but 1/N, and one bucket of gradients that is being reduced; activations as with every way to share
a batch.
Costs: the gradients are reduce-scattered as backward makes them, the parameters gathered after the step: the same
bytes as data parallel training.
Numerics: identical up to the order of sums.
Conflicts: gradients accumulated over micro-batches are reduced in each of them; not beside FSDP.
Frameworks: DeepSpeed ZeRO stage 2. FSDP1's `SHARD_GRAD_OP` and FSDP2's `reshard_after_forward=False` go by the same
name, and shard the parameters between steps as well: that is `fsdp` with `reshard_after_forward: false`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .costs.sharding import stage_factor
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .passes import is_training, iterations
from .sharded_state import held, with_parts
from .whatif_timeline import BACKWARD
from .zero_1 import settings as stage_1

NAME = "zero-2"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES
BUCKET_BYTES = 500_000_000  # DeepSpeed's reduce_bucket_size counts elements: 5e8 of them, at most the gradients


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    found = stage_1(case)
    if isinstance(found, NotApplicable):
        return NotApplicable(NAME, found.reason)
    if not case.timeline.is_category(Category.GRADIENT).any():
        return NotApplicable(NAME, "no gradient is in the trace")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    ranks = case.job.world_size
    timeline = with_parts(case, Category.OPTIMIZER_STATE, Category.GRADIENT)
    gradients = held(case.timeline, Category.GRADIENT)
    item = max(1, case.facts.parameter_bytes // max(1, case.facts.parameter_count))
    bucket = min(BUCKET_BYTES * item, gradients)
    spans = [(bucket, i.backward_start, i.end) for i in iterations(timeline) if is_training(i, timeline)]
    whole = gradients + held(case.timeline, Category.OPTIMIZER_STATE)
    return Change(
        setting=Setting(name=NAME),
        expected=timeline.added(spans, category=Category.COMMUNICATION, phase=BACKWARD),
        low=timeline,
        high=None,
        step_time_factor=stage_factor(case),
        numerics=NUMERICS,
        why=f"each of {ranks} ranks keeps 1/{ranks} of {size(whole)} of gradients and optimizer state",
        doubt=f"the buckets that gradients are reduced in take up to {size(bucket)}",
        time_doubt="from gradients reduced behind backward to all of it seen",
    )
