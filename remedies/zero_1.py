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
from .interface import Effort, NotApplicable, Numerics, Setting
from .passes import iterations
from .sharded_state import held, with_parts
from .whatif_timeline import FORWARD

NAME = "zero-1"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES


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
    shared = with_parts(case, Category.OPTIMIZER_STATE)
    buckets = _buckets(case)
    return Change(
        setting=Setting(name=NAME),
        expected=shared.added(buckets, category=Category.COMMUNICATION, phase=FORWARD) if buckets else shared,
        low=shared if buckets else None,
        high=None,
        step_time_factor=stage_factor(case),
        numerics=NUMERICS,
        why=f"each of {ranks} ranks keeps 1/{ranks} of {size(state)} of optimizer state, and of the batch",
        doubt="DDP's buckets take the gradients once more, unless gradient_as_bucket_view=True" if buckets else "",
        time_doubt="from gradients reduced behind backward to all of it seen",
    )


def _buckets(case: Case) -> list[tuple[int, float, float]]:
    """What DistributedDataParallel adds to a job of one process: a copy of all gradients, from its construction on."""
    recording = case.profile.snapshot.recording
    first = next((each.start for each in iterations(case.timeline)), None)
    if first is None or (recording is not None and recording.world_size > 1):
        return []
    return [(held(case.timeline, Category.GRADIENT), first - 0.5, float(case.timeline.events))]
