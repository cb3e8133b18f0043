"""The step time of splitting the model's own computation: tensor, context and pipeline parallel."""

from dataclasses import replace
from typing import TYPE_CHECKING

from ..interface import Band
from .collectives import all_gather, all_reduce
from .step_time import step_seconds
from .topology import inside_node, topology_of

if TYPE_CHECKING:
    from ..estimating import Case

# Where the step time is not known: published tensor parallel runs inside a node lose 5 to 30 %.
UNKNOWN_STEP = Band(low=1.02, expected=1.15, high=1.5)


def tensor_parallel_factor(case: "Case", degree: int, output_bytes: int) -> Band:
    """Two all-reduces of a block's output in forward and two in backward; asynchronous ones hide half at best."""
    step = step_seconds(case)
    if step is None or not output_bytes:
        return UNKNOWN_STEP
    group = replace(inside_node(topology_of(case.job)), gpus_per_node=degree)
    seconds = 4 * len(case.facts.blocks) * all_reduce(group, output_bytes).seconds
    low, expected, high = (each / degree for each in (step.low, step.expected, step.high))
    return Band(low=1 + 0.5 * seconds / high, expected=1 + 0.8 * seconds / expected, high=1 + seconds / low)


def context_parallel_factor(case: "Case", degree: int, output_bytes: int) -> Band:
    """Keys and values, at most twice a block's output, go round in forward; with their gradients, twice that back."""
    step = step_seconds(case)
    if step is None or not output_bytes:
        return UNKNOWN_STEP
    group = replace(inside_node(topology_of(case.job)), gpus_per_node=degree)
    seconds = 3 * len(case.facts.blocks) * all_gather(group, 2 * output_bytes).seconds
    low, expected = step.low / degree, step.expected / degree
    hidden = max(0.15 * seconds, seconds - expected)
    return Band(low=1.0, expected=1 + hidden / expected, high=1 + seconds / low)


def pipeline_factor(stages: int, micro_batches: int) -> Band:
    """The bubble of 1F1B; interleaving halves it at least, uneven stages add a third."""
    bubble = (stages - 1) / micro_batches
    return Band(low=1 + bubble / 2, expected=1 + bubble, high=1 + 1.33 * bubble + 0.1)
