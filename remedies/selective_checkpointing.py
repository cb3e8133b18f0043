"""Recompute what is cheap, keep what is dear; or checkpoint as many blocks as a byte budget asks for.

Norms, activations, dropout and sums are computed again, the results of products and of attention stay.

Applies when: activations saved inside repeated blocks are a large share of the peak.
Saves: `keep: products` all that the blocks save but the results of products and attention (those take most of the
time and about half of the bytes); `blocks: N` everything inside the first N blocks but what enters them: the fewest
whose bytes bring the peak below what the card has.
Costs: `keep: products` 4 to 13 % of the step (Megatron +4 to 7 %, Llama-2-13B on 64 A100 -11.5 to -12 % tokens/s);
`blocks: N` the forward of N blocks once more.
Numerics: identical, random numbers included.
Conflicts: as activation checkpointing; torch.compile's own partitioner already does the first.
Frameworks: torch.utils.checkpoint `create_selective_checkpoint_contexts`; torchtitan `activation_checkpoint.mode:
selective`; Megatron `--recompute-granularity selective`; DeepSpeed and Hugging Face have the whole blocks only.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..diagnosers.text import size
from .activation_checkpointing import change as whole
from .activation_checkpointing import settings as whole_settings
from .autocast_kinds import Kind
from .autocast_rows import kinds_of
from .estimating import Case, Change
from .interface import Band, Effort, NotApplicable, Numerics, Setting
from .passes import BlockPass
from .whatif_timeline import BACKWARD, Timeline

NAME = "selective-checkpointing"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES
STEP_TIME = Band(low=1.02, expected=1.07, high=1.14)
_KEPT = (Kind.PRODUCT, Kind.ATTENTION)


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    found = whole_settings(case)
    if isinstance(found, NotApplicable):
        return NotApplicable(NAME, found.reason)
    modules = list(case.facts.block_classes)
    chosen = [Setting(name=NAME, options={"modules": modules, "keep": "products"})]
    blocks = _fewest_blocks(case)
    if blocks is not None:
        chosen.append(Setting(name=NAME, options={"modules": modules, "blocks": blocks}))
    return tuple(chosen)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    if "blocks" in options:
        first = _first(case, int(options["blocks"]))
        found = whole(first, {"every": 1, "modules": list(case.facts.block_classes)})
        if isinstance(found, NotApplicable):
            return NotApplicable(NAME, found.reason)
        return replace(found, setting=Setting(name=NAME, options=dict(options)))
    kinds = kinds_of(case.timeline, case.facts.class_of, case.profile.snapshot.stacks)
    death = case.timeline.death.copy()
    parts: list[Timeline] = []
    most: dict[float, int] = {}
    for each in case.passes:
        rows = each.saved[~np.isin(kinds[each.saved], _KEPT)]
        if not len(rows) or not np.isfinite(each.backward_start):
            continue
        death[rows] = np.minimum(death[rows], each.end)
        parts.append(_again(case.timeline, each, rows))
        start = each.iteration.start
        most[start] = most.get(start, 0) + int(case.timeline.size[rows].sum())
    if not parts:
        return NotApplicable(NAME, "the blocks save nothing but the results of products")
    moved = case.timeline.with_death(death)
    return Change(
        setting=Setting(name=NAME, options=dict(options)),
        expected=moved.joined(*parts),
        low=None,
        high=None,
        step_time_factor=STEP_TIME,
        numerics=NUMERICS,
        why=f"{size(max(most.values()))} of norms, activations and sums are computed again; products are kept",
        doubt="which rows are results of products is read from their module's class",
        time_doubt="published runs of such policies took 1.04 to 1.13 times as long",
    )


def _again(timeline: Timeline, block: BlockPass, rows: "np.ndarray[Any, np.dtype[np.intp]]") -> Timeline:
    """Computed again before the block's backward, and let go as they were."""
    birth = np.full(len(rows), block.backward_start - 0.5)
    return timeline.copies(rows, birth=birth, death=np.maximum(timeline.death[rows], birth + 0.1), phase=BACKWARD)


def _fewest_blocks(case: Case) -> int | None:
    """The fewest blocks whose checkpointing makes the peak fit; None where none need it, or all are not enough."""
    capacity, count = case.job.capacity_bytes, len(case.facts.blocks)
    if capacity is None or case.timeline.peak().bytes <= capacity or not _fits(case, count, capacity):
        return None
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        if _fits(case, middle, capacity):
            high = middle
        else:
            low = middle + 1
    return low if low < count else None


def _fits(case: Case, blocks: int, capacity: int) -> bool:
    found = whole(_first(case, blocks), {"every": 1, "modules": list(case.facts.block_classes)})
    return not isinstance(found, NotApplicable) and found.expected.peak().bytes <= 0.97 * capacity


def _first(case: Case, blocks: int) -> Case:
    """The job as if only its first blocks were blocks."""
    return replace(case, facts=replace(case.facts, blocks=case.facts.blocks[:blocks]))
