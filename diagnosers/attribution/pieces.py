"""Copies of the parameters that lie in other pieces than the parameters: one buffer for many, or the other way round.

cuDNN's RNNs keep their weights in one buffer, while the optimizer's state has a tensor for each; DDP reduces gradients
in buckets. Sizes do not repeat then, but bytes do, and to the byte.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Sizes = Mapping[int, int]  # requested bytes -> number of blocks

# Small blocks that are something else's (counters of steps) may be among them: bytes agree to this share.
SLACK = 0.005
MAX_CLASSES = 16  # size classes to choose among: more of them make any sum


class Flat(NamedTuple):
    """Sizes of blocks."""

    together: frozenset[int]  # parameters, many in one buffer
    apart: frozenset[int]  # their optimizer state, a tensor for each


def flattened(unit: Sizes, blocks: Sizes, copies: int) -> Flat | None:
    """Where `copies` of `unit` lack exactly the bytes that other blocks have too many; None where they do not."""
    lacking = {size: copies * count - blocks[size] for size, count in unit.items() if blocks.get(size, 0) > 0}
    together = {size: number for size, number in lacking.items() if number > 0}
    over = {size: count - copies * unit.get(size, 0) for size, count in blocks.items()}
    apart = {size: number for size, number in over.items() if number > 0}
    missing = sum(size * number for size, number in together.items())
    if copies < 2 or not missing or missing != sum(size * number for size, number in apart.items()):
        return None
    return Flat(frozenset(together), frozenset(apart))


def buckets(blocks: Sizes, copies: int) -> frozenset[int]:
    """Sizes of blocks that hold the parameters once more, where all other sizes hold them `copies` times each.

    Sizes whose count `copies` does not divide are among them. Empty where no choice makes the bytes agree.
    """
    total = sum(size * count for size, count in blocks.items())
    odd = {size for size, count in blocks.items() if count % copies}
    wanted = total / (copies + 1) - sum(size * blocks[size] for size in odd)
    others = sorted((size * count, size) for size, count in blocks.items() if size not in odd)[-MAX_CLASSES:]
    chosen = _subset(others[::-1], wanted, SLACK * total / (copies + 1))
    return frozenset() if chosen is None else frozenset(odd.union(chosen))


def _subset(classes: Sequence[tuple[int, int]], wanted: float, slack: float) -> tuple[int, ...] | None:
    """The sizes of `classes` (bytes, size; most bytes first) whose bytes sum to `wanted`; the fewest large ones."""
    if abs(wanted) <= slack:
        return ()
    if wanted < 0 or not classes or sum(number for number, _ in classes) < wanted - slack:
        return None
    (number, size), rest = classes[0], classes[1:]
    with_it = _subset(rest, wanted - number, slack)
    return (size, *with_it) if with_it is not None else _subset(rest, wanted, slack)
