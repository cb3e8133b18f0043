"""Shard block by block: wrap each repeated block in its own FSDP unit, so that one block is whole at a time.

Applies when: FSDP gathers more at once than a block: one unit for the model, or a size policy with large units.
Saves: of what is gathered at the peak all but two blocks (the one that runs and the one fetched ahead).
Costs: more and smaller collectives: each with its latency, less of it hidden for tiny blocks.
Numerics: identical.
Conflicts: weights shared between units have to be in the same one.
Frameworks: `for block in model.layers: fully_shard(block)`; FSDP1 `transformer_auto_wrap_policy`; Hugging Face
`fsdp_transformer_layer_cls_to_wrap`; accelerate `fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .fsdp import gathered
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import ENGINE_EVENTS, BlockPass, is_training, iterations
from .whatif_timeline import BACKWARD, Mask, Timeline

NAME = "wrapping-policy"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES
LEAST_BLOCKS = 2.5  # that one gather holds, for its unit to be more than a block


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if not case.facts.sharded:
        return NotApplicable(NAME, "the parameters are not sharded")
    if not case.facts.blocks:
        return NotApplicable(NAME, "the model has no repeated blocks to wrap")
    block = _block(case)
    if not block or not _large(case, block).any():
        return NotApplicable(NAME, "no gather holds much more than a block")
    return (Setting(name=NAME, options={"wrap": list(case.facts.block_classes)}),)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    block = _block(case)
    rows = _large(case, block)
    if not rows.any():
        return NotApplicable(NAME, "no gather holds much more than a block")
    largest = int(case.timeline.size[rows].max())
    return Change(
        setting=Setting(name=NAME, options={"wrap": list(case.facts.block_classes)}),
        expected=_block_by_block(case),
        low=None,
        high=None,
        step_time_factor=Band(low=0.95, expected=1.0, high=1.1),
        numerics=NUMERICS,
        why=f"gathers of {size(largest)} become two blocks of {size(block)}",
        doubt="how many units are there at a time depends on how far the host runs ahead",
        time_doubt="more collectives, but hidden behind the block before",
    )


def _block_by_block(case: Case) -> Timeline:
    """The recorded gathers are left out, those of FSDP2 with a unit for each block take their place."""
    timeline, ranks = case.timeline, case.job.world_size
    sizes = {path: n * ranks for path, n in case.facts.parameter_bytes_of_module.items()}
    whole = replace(
        case,
        facts=replace(case.facts, parameter_bytes_of_module=sizes, parameter_bytes=case.facts.parameter_bytes * ranks),
    )
    passes = [each for each in case.passes if is_training(each.iteration, timeline)]
    new = _gradients_let_go(timeline, passes).without(timeline.is_category(Category.COMMUNICATION))
    for iteration in iterations(timeline):
        mine = [each for each in passes if each.iteration == iteration]
        new = gathered(new, timeline, mine, iteration, whole, True)
    return new


def _gradients_let_go(timeline: Timeline, passes: Sequence[BlockPass]) -> Timeline:
    """Whole gradients wait for the end of their block's backward, no longer for that of the model's."""
    death = timeline.death.copy()
    made = timeline.is_category(Category.TEMPORARY, Category.GRADIENT) & timeline.is_phase(BACKWARD)
    for i, block in enumerate(passes):
        first = i == 0 or passes[i - 1].iteration != block.iteration
        end = block.iteration.end if first else passes[i - 1].backward_start
        waiting = made & timeline.under(block.path) & (timeline.birth >= block.backward_start)
        waiting &= (timeline.birth < end) & (death > end + 2 * ENGINE_EVENTS) & (death <= block.iteration.end + 1)
        death[waiting] = np.maximum(end - 0.4, timeline.birth[waiting] + 0.1)
    return timeline.with_death(death)


def _block(case: Case) -> int:
    """Whole bytes of the largest block: `facts` count what a rank holds."""
    return max((case.facts.bytes_below(path) for path in case.facts.blocks), default=0) * case.job.world_size


def _large(case: Case, block: int) -> Mask:
    timeline = case.timeline
    return timeline.is_category(Category.COMMUNICATION) & (timeline.size > LEAST_BLOCKS * block)
