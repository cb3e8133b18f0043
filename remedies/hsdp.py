"""Shard over the GPUs of a node and replicate across nodes (HSDP): the gathers stay on the fast links.

Applies when: there is more than one node, and one node's share of the model fits on each card.
Saves: of parameters, gradients and optimizer state all but one part in as many as a node has GPUs; activations as
under FSDP, because a batch is shared by all ranks.
Costs: gathers and scatters inside the node, over NVLink; between nodes an all-reduce of each GPU's shard of the
gradients, which backward hides. Sharding over all nodes sends three times the parameters over the network, this
sends the gradients' shards twice: `oomdoc plan --topology 4x8:h100-80gb:nvlink:ib400` compares the two.
Numerics: identical up to the order of sums.
Conflicts: as FSDP; it saves less than sharding over all ranks does.
Frameworks: torch fully_shard with a mesh of two dimensions; FSDP1 `HYBRID_SHARD`; torchtitan
`data_parallel_replicate_degree`; DeepSpeed `zero_hpz_partition_size`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.text import size
from .costs.sharding import fsdp_factor
from .estimating import Case, Change
from .fsdp import TIME_DOUBT, sharded
from .fsdp import settings as fsdp_settings
from .interface import Effort, NotApplicable, Numerics, Setting

NAME = "hsdp"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if case.job.nnodes < 2:
        return NotApplicable(NAME, "one node: there is nothing to replicate across")
    if case.job.world_size // case.job.nnodes < 2:
        return NotApplicable(NAME, "one GPU a node: there is nothing to shard over inside it")
    found = fsdp_settings(case)
    if isinstance(found, NotApplicable):
        return NotApplicable(NAME, found.reason)
    shards = case.job.world_size // case.job.nnodes
    return (Setting(name=NAME, options={"wrap": found[0].options["wrap"], "shards": shards}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    shards = int(options["shards"])
    names = tuple(options.get("wrap") or case.facts.block_classes)
    new = sharded(case, names, over=shards, reshard=True)
    if isinstance(new, NotApplicable):
        return NotApplicable(NAME, new.reason)
    state = sum(each.state_bytes for each in case.facts.optimizers)
    return Change(
        setting=Setting(name=NAME, options={"wrap": list(names), "shards": shards}),
        expected=new,
        low=None,
        high=None,
        step_time_factor=fsdp_factor(case, reshard_after_forward=True, replicate=True),
        numerics=NUMERICS,
        why=(
            f"each GPU of a node keeps 1/{shards} of {size(2 * case.facts.parameter_bytes + state)}; gathers stay "
            f"inside the node, gradients are summed across {case.job.nnodes} nodes"
        ),
        doubt="when gathered parameters are given back depends on how far the host runs ahead",
        time_doubt=TIME_DOUBT,
    )
