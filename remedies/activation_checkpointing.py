"""Keep only what enters each block, and compute the inside of the block again when backward comes to it.

Applies when: activations that are saved for backward are a large share of the peak, and the model has repeated
blocks (transformer layers, residual stages).
Saves: of each checkpointed block everything that autograd saved inside it, except its output (the next block's
input); during backward the inside of one block is there again. `every: 2` checkpoints each second block.
Costs: the forward of the checkpointed blocks once more, 18 to 40 % of the step when all of them are (measured:
+19 % Llama-3-8B on 8 H100, +27 % Llama-3.2-3B on an A100, +29 % bert-large on a V100, up to +39 % in papers).
Numerics: identical, random numbers included (the state of the generator is kept).
Conflicts: does nothing for a peak in the loss (logits), in the optimizer step or outside training; modules that keep
state in forward (key-value caches, running statistics) update it twice; with frozen inputs it needs
use_reentrant=False, which oomdoc uses.
Frameworks: torch.utils.checkpoint; Hugging Face `gradient_checkpointing: true`; DeepSpeed `activation_checkpointing`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .costs.compute import recompute_factor
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .key_value_cache import without_cache
from .passes import BlockPass, for_backward, given_back
from .whatif_timeline import BACKWARD, Timeline

NAME = "activation-checkpointing"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.SETTING


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    """All blocks, and every second one where there are enough of them to matter."""
    if not case.facts.known:
        return NotApplicable(
            NAME, "the snapshot does not say which modules the model repeats: record it with `oomdoc run`"
        )
    if not case.facts.blocks:
        return NotApplicable(NAME, "the model has no repeated blocks")
    if case.facts.training_mode is False:
        return NotApplicable(NAME, "the model is in eval mode: what its blocks keep is no graph")
    if not any(len(each.saved) for each in case.passes):
        return NotApplicable(
            NAME, "the repeated blocks save nothing for backward (no training step, or checkpointed already)"
        )
    modules = list(case.facts.block_classes)
    every = (1, 2) if len(case.facts.blocks) >= 4 else (1,)
    return tuple(Setting(name=NAME, options={"modules": modules, "every": k}) for k in every)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    every = int(options.get("every", 1))
    names = tuple(options.get("modules") or case.facts.block_classes)
    paths = [path for path in case.facts.blocks if case.facts.class_of.get(path) in names]
    chosen = set(paths[::every])
    case = case.changed(without_cache(case))
    passes = [each for each in case.passes if each.path in chosen and len(each.saved)]
    if not passes:
        return NotApplicable(NAME, f"no module of class {', '.join(names)} saves anything for backward")
    timeline = case.timeline
    death = timeline.death.copy()
    parts: list[Timeline] = []
    for each in passes:
        death[each.saved] = each.end
        parts.extend(_recomputed(timeline, each))
        casts = _weight_casts(timeline, each)
        death[casts] = each.iteration.backward_start
        parts.append(timeline.copies(casts, birth=_before(each, casts), death=timeline.death[casts]))
    new = timeline.with_death(death).joined(*parts)
    share = len(chosen) / max(1, len(case.facts.blocks))
    factor = recompute_factor(case, paths=tuple(chosen))
    saved = max(sum(int(timeline.size[p.saved].sum()) for p in passes if p.iteration == i) for i in _iterations(passes))
    return Change(
        setting=Setting(name=NAME, options={"modules": list(names), "every": every}),
        expected=new,
        low=None,
        high=None,
        step_time_factor=factor,
        numerics=NUMERICS,
        why=(
            f"{size(saved)} that {len(chosen)} blocks ({', '.join(names)}) save for backward shrink to their "
            f"inputs; {share:.0%} of the blocks run forward twice"
        ),
        time_doubt="published runs of full checkpointing took 1.18 to 1.40 times as long",
    )


def _iterations(passes: list[BlockPass]) -> list[Any]:
    return list({each.iteration: None for each in passes})


def _weight_casts(timeline: Timeline, block: BlockPass) -> NDArray[np.intp]:
    """Lower-precision weights that the block saved: autocast's cache holds them to the end of forward, no longer."""
    if not np.isfinite(block.backward_start):
        return np.array([], np.intp)
    cast = timeline.is_category(Category.AUTOCAST_CACHE) & timeline.under(block.path)
    cast &= (timeline.birth >= block.iteration.start) & (timeline.birth < block.iteration.backward_start)
    return np.flatnonzero(cast & for_backward(timeline, block.iteration))


def _before(block: BlockPass, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.full(len(rows), block.backward_start - 0.95)


def _recomputed(timeline: Timeline, block: BlockPass) -> list[Timeline]:
    """The inside of the block once more, just before its backward: what is saved lives as it did, the rest as briefly.

    Recomputation stops at the last tensor that is needed, so what came after it (the output) is not made again.
    """
    if not np.isfinite(block.backward_start):
        return []
    last_needed = float(timeline.birth[block.saved].max())
    again = block.rows[timeline.birth[block.rows] <= last_needed]
    again = again[again != block.output]
    span = max(block.end - block.start, 1.0)

    def squeezed(time: NDArray[np.float64]) -> NDArray[np.float64]:
        return block.backward_start - 0.95 + 0.9 * (np.clip(time, block.start, block.end) - block.start) / span

    birth = squeezed(timeline.birth[again])
    saved = np.isin(again, block.saved)
    own = timeline.death[again]
    sooner = given_back(timeline, own)
    kept = np.where(sooner > block.backward_start, sooner, own)  # at least to the first operation that reads it
    death = np.where(saved, kept, squeezed(own) + 1e-6)
    return [timeline.copies(again, birth=birth, death=death, category=Category.ACTIVATION, phase=BACKWARD)]
