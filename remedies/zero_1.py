"""Shard the optimizer's state over the ranks (ZeRO-1); parameters and gradients stay whole on each.

Applies when: there is more than one GPU and optimizer state is a large share of the peak.
Saves: of the optimizer's state, and of the temporaries of its step, all but 1/N; activations as with every way to
share a batch.
Costs: after the step each rank gathers the parameters that the others updated: an all-gather of them all.
Numerics: identical up to the order of sums.
Conflicts: not beside FSDP, which shards the state as well; a checkpoint of the state has to be put together first.
Frameworks: torch.distributed.optim.ZeroRedundancyOptimizer; DeepSpeed ZeRO stage 1.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .costs.sharding import stage_factor
from .estimating import Case, Change
from .interface import NotApplicable, Numerics, Setting
from .sharded_state import held, with_parts

NAME = "zero-1"
NUMERICS = Numerics.IDENTICAL


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if case.job.world_size < 2:
        return NotApplicable(NAME, "one GPU: give --nproc-per-node or --topology for what sharding would bring")
    if case.facts.sharded:
        return NotApplicable(NAME, "the parameters are sharded already, and the state with them")
    if not case.timeline.is_category(Category.OPTIMIZER_STATE).any():
        return NotApplicable(NAME, "no optimizer state is in the trace")
    return (Setting(name=NAME),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    ranks = case.job.world_size
    state = held(case.timeline, Category.OPTIMIZER_STATE)
    return Change(
        setting=Setting(name=NAME),
        expected=with_parts(case, Category.OPTIMIZER_STATE),
        low=None,
        high=None,
        step_time_factor=stage_factor(case),
        numerics=NUMERICS,
        why=f"each of {ranks} ranks keeps 1/{ranks} of {size(state)} of optimizer state, and of the batch",
        time_doubt="from gradients reduced behind backward to all of it seen",
    )
