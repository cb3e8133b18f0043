"""What the ways to split a model's own computation share: the rows of its blocks, and their share of the parameters."""

import numpy as np

from ..diagnosers.interface import Category
from .estimating import Case
from .interface import NotApplicable
from .whatif_timeline import OPTIMIZER, Mask, Timeline


def of_blocks(case: Case) -> Mask:
    """Rows made in the repeated blocks, forward and backward."""
    found = np.zeros(len(case.timeline), np.bool_)
    for path in case.facts.blocks:
        found |= case.timeline.under(path)
    return found


def share_in_blocks(case: Case) -> float:
    """Of the parameters' bytes."""
    inside = sum(case.facts.bytes_below(path) for path in case.facts.blocks)
    return min(1.0, inside / max(1, case.facts.parameter_bytes))


def with_model_split(case: Case, timeline: Timeline, parts: float, share: float) -> Timeline:
    """Parameters, gradients, state and the step's temporaries: `share` of them in `parts`, the rest whole."""
    rows = timeline.is_category(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    rows |= timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
    return timeline.resized(rows, share / parts + 1 - share)


def refused(case: Case, name: str) -> NotApplicable | None:
    if case.job.world_size < 2:
        return NotApplicable(name, "one GPU: give --nproc-per-node or --topology for what splitting would bring")
    if not case.facts.known or not case.facts.blocks:
        return NotApplicable(name, "the model has no repeated blocks that could be split")
    return None


def degree(case: Case, most: int) -> int:
    """The largest power of two that the GPUs of a node, or `most`, allow."""
    found = 1
    while found * 2 <= min(most, max(1, case.job.world_size // max(1, case.job.nnodes))):
        found *= 2
    return found
