"""Which of cuDNN's plans runs, where the timing of a GPU that is not here decides it.

Two cases need no timing, since a workspace has to be written and read once more: in float, a filter of one pixel that
skips none is a product of matrices as they lie; and a convolution that ordinary cores compute as fast as memory can
bring its tensors cannot be made faster. Everywhere else cuDNN's own heuristic, which is made from timings, is believed.
"""

from collections.abc import Sequence
from math import prod

from .cudnn_plans import Dtype, Plan, Problem

_BYTES = {Dtype.FLOAT: 4, Dtype.DOUBLE: 8, Dtype.HALF: 2, Dtype.BFLOAT16: 2}


def likely(plans: Sequence[Plan], problem: Problem, flops: float, bandwidth: float) -> int:
    """Index of the plan that a trial probably finds fastest.

    `flops`: FLOP/s of the card's ordinary cores in float; `bandwidth`: bytes/s of its memory.
    """
    if not (is_product(problem) or waits_for_memory(problem, flops, bandwidth)):
        return 0
    return min(range(len(plans)), key=lambda i: plans[i].workspace)


def is_product(problem: Problem) -> bool:
    """In float, one pixel of the input makes one of the output: tensor cores can read both as they lie."""
    ones = (*problem.weight[2:], *problem.stride)
    return problem.dtype is Dtype.FLOAT and set(ones) == {1} and not any(problem.padding)


def waits_for_memory(problem: Problem, flops: float, bandwidth: float) -> bool:
    """Whether moving the three tensors takes ordinary cores longer than computing on them."""
    work = 2 * prod(problem.y) * prod(problem.weight[1:])
    moved = _BYTES[problem.dtype] * sum(map(prod, (problem.x, problem.weight, problem.y)))
    return work * bandwidth <= moved * flops
