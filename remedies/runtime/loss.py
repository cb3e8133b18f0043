"""Whether a loss is a mean or a sum over samples, read from its graph: it decides how a micro-batch is weighted."""

from enum import Enum
from typing import Any

import torch

_MEAN = {"MeanBackward0", "MeanBackward1"}
_SUM = {"SumBackward0", "SumBackward1"}
_THROUGH = {"MulBackward0", "NegBackward0", "ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "AliasBackward0"}
_REDUCTION = {0: None, 1: "mean", 2: "sum"}


class Reduction(str, Enum):
    MEAN = "mean"
    SUM = "sum"
    RATIO = "ratio"  # a sum divided by something, e.g. by the number of tokens
    UNKNOWN = "unknown"
    MIXED = "mixed"  # terms of both kinds


def reduction_of(loss: torch.Tensor) -> Reduction:
    """How `loss` was reduced over the samples, from its autograd graph; UNKNOWN where the graph does not say.

    Scalar terms that are added, negated or multiplied (weights, a gradient scaler) are looked through, at most 64
    nodes. Loss functions carry their `reduction` in the node (`_saved_reduction` of NllLossBackward0 and others).
    """
    found: set[Reduction] = set()
    stack: list[Any] = [loss.grad_fn]
    seen = 0
    while stack and seen < 64:
        node = stack.pop()
        seen += 1
        if node is None or node.name().endswith("AccumulateGrad"):
            continue
        name = node.name()
        reduction = _REDUCTION.get(getattr(node, "_saved_reduction", 0))
        if reduction:
            found.add(Reduction(reduction))
        elif name in _MEAN:
            found.add(Reduction.MEAN)
        elif name in _SUM:
            found.add(Reduction.SUM)
        elif name == "DivBackward0":
            below = _of_children(node)
            found.add(Reduction.RATIO if Reduction.SUM in below else next(iter(below), Reduction.UNKNOWN))
        elif name in _THROUGH or name in ("AddBackward0", "SubBackward0"):
            stack.extend(child for child, _ in node.next_functions)
        else:
            found.add(Reduction.UNKNOWN)
    if len(found) == 1:
        return found.pop()
    found.discard(Reduction.UNKNOWN)
    if Reduction.SUM in found and len(found) > 1:
        return Reduction.MIXED
    return Reduction.MEAN if found == {Reduction.MEAN, Reduction.RATIO} else Reduction.UNKNOWN


def _of_children(node: Any) -> set[Reduction]:
    """The reductions directly below a division."""
    found = set()
    for child, _ in node.next_functions:
        if child is None:
            continue
        if child.name() in _SUM or _REDUCTION.get(getattr(child, "_saved_reduction", 0)) == "sum":
            found.add(Reduction.SUM)
        elif child.name() in _MEAN or _REDUCTION.get(getattr(child, "_saved_reduction", 0)) == "mean":
            found.add(Reduction.MEAN)
    return found
