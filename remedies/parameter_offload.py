"""Keep parameters, gradients and optimizer state in host memory; one block's parameters are on the card at a time.

Applies when: parameters and their gradients and state are a large share of the peak, and the model has repeated
blocks.
Saves: all three, but for the block that runs and what is outside the blocks; activations stay.
Costs: parameters cross PCIe to the card in forward and again in backward, gradients back to the host, where the CPU
makes the step: published offloads of the step took 1.2 to 2.5 times as long, this more.
Numerics: identical up to the order of sums; the CPU's step rounds as it does.
Conflicts: host memory has to hold all of it, pinned; the optimizer must have a CPU form.
Frameworks: FSDP2 `CPUOffloadPolicy`; DeepSpeed ZeRO stage 3 `offload_param` and `offload_optimizer`; accelerate
`fsdp_offload_params: true`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .costs.transfer import transfer_factor
from .estimating import Case, Change
from .fsdp import gathered
from .interface import Effort, NotApplicable, Numerics, Setting
from .passes import block_passes, is_training, iterations
from .sharded_state import held
from .whatif_timeline import OPTIMIZER, Timeline

NAME = "parameter-offload"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not case.facts.known:
        return NotApplicable(NAME, "the snapshot does not say which modules the model repeats")
    if case.facts.sharded:
        return NotApplicable(NAME, "the parameters are sharded: offloading is an option of what shards them")
    if not case.facts.blocks or not case.passes:
        return NotApplicable(NAME, "the model has no repeated blocks to bring to the card one by one")
    return (Setting(name=NAME, options={"blocks": list(case.facts.block_classes)}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    timeline = case.timeline
    passes = [p for p in block_passes(timeline, case.facts.blocks) if is_training(p.iteration, timeline)]
    if not passes:
        return NotApplicable(NAME, "no training step with repeated blocks is in the trace")
    new = _without_state(timeline)
    for iteration in iterations(timeline):
        mine = [p for p in passes if p.iteration == iteration]
        new = gathered(new, timeline, mine, iteration, case, True)
    there = held(timeline, Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    moved = 3 * case.facts.parameter_bytes
    return Change(
        setting=Setting(name=NAME, options={"blocks": list(case.facts.block_classes)}),
        expected=new,
        low=None,
        high=None,
        step_time_factor=transfer_factor(case, moved, overlapped=True),
        numerics=NUMERICS,
        why=f"{size(there)} wait in host memory, one block's parameters are here; {size(moved)} cross PCIe in a step",
        doubt="when a block's parameters are given back depends on how far the host runs ahead",
        time_doubt="from transfers hidden behind computation to pageable host memory and none hidden",
    )


def _without_state(timeline: Timeline) -> Timeline:
    """Parameters until the first forward (the model is built on the card or not), nothing of the step."""
    rows = timeline.is_category(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    rows |= timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
    return timeline.without(rows)
