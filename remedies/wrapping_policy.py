"""Shard block by block: wrap each repeated block in its own FSDP unit, so that one block is whole at a time.

Applies when: FSDP gathers more at once than a block: one unit for the model, or a size policy with large units.
Saves: of what is gathered at the peak all but two blocks (the one that runs and the one fetched ahead).
Costs: more and smaller collectives: each with its latency, less of it hidden for tiny blocks.
Numerics: identical.
Conflicts: weights shared between units have to be in the same one.
Frameworks: `for block in model.layers: fully_shard(block)`; FSDP1 `transformer_auto_wrap_policy`; Hugging Face
`fsdp_transformer_layer_cls_to_wrap`; accelerate `fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP`.
"""

from collections.abc import Mapping
from typing import Any

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .estimating import Case, Change
from .interface import Band, NotApplicable, Numerics, Setting
from .whatif_timeline import Mask

NAME = "wrapping-policy"
NUMERICS = Numerics.IDENTICAL
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
        expected=case.timeline.resized(rows, 2 * block / largest),
        low=None,
        high=None,
        step_time_factor=Band(low=0.95, expected=1.0, high=1.1),
        numerics=NUMERICS,
        why=f"gathers of {size(largest)} become two blocks of {size(block)}",
        doubt="how many units are there at a time depends on how far the host runs ahead",
        time_doubt="more collectives, but hidden behind the block before",
    )


def _block(case: Case) -> int:
    """Whole bytes of the largest block: `facts` count what a rank holds."""
    return max((case.facts.bytes_below(path) for path in case.facts.blocks), default=0) * case.job.world_size


def _large(case: Case, block: int) -> Mask:
    timeline = case.timeline
    return timeline.is_category(Category.COMMUNICATION) & (timeline.size > LEAST_BLOCKS * block)
