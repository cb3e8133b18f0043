"""Which of cuDNN's plans runs, where the timing of a GPU that is not here decides it.

Ordinary cores that compute a convolution as fast as memory can bring its tensors cannot be beaten: what a tensor-core
plan converts in its workspace it has to write and read once more. So a filter of one pixel on large images runs with
the least workspace. Where ordinary cores are the limit, cuDNN's own heuristic, which is made from timings, is believed.
"""

from collections.abc import Sequence
from math import prod

from .cudnn_plans import Dtype, Plan, Problem

_BYTES = {Dtype.FLOAT: 4, Dtype.DOUBLE: 8, Dtype.HALF: 2, Dtype.BFLOAT16: 2}


def likely(plans: Sequence[Plan], problem: Problem, flops: float, bandwidth: float) -> int:
    """Index of the plan that a trial probably finds fastest.

    `flops`: FLOP/s of the card's ordinary cores in float; `bandwidth`: bytes/s of its memory.
    """
    if not waits_for_memory(problem, flops, bandwidth):
        return 0
    return min(range(len(plans)), key=lambda i: plans[i].workspace)


def waits_for_memory(problem: Problem, flops: float, bandwidth: float) -> bool:
    """Whether moving the three tensors takes ordinary cores longer than computing on them."""
    work = 2 * prod(problem.y) * prod(problem.weight[1:])
    moved = _BYTES[problem.dtype] * sum(map(prod, (problem.x, problem.weight, problem.y)))
    return work * bandwidth <= moved * flops
