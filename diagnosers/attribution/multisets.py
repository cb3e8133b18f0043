"""Sizes of blocks without frames. Gradients and optimizer moments repeat the multiset of parameter sizes exactly."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..interface import Category

Sizes = Mapping[int, int]  # requested bytes -> number of blocks

# Shares of facts that were measured on 78 recordings: the factor test needs classes holding this much of the bytes to
# agree, and this many classes; a class with this many blocks may not contradict (pre-norm transformers have 2L+1 norm
# weights, an odd class of tiny blocks that kills a false factor 2).
AGREEING_BYTES = 0.985
AGREEING_CLASSES = 3
CONTRADICTING_BLOCKS = 5


@dataclass(frozen=True, slots=True)
class Copies:
    """What the copies of the parameter multiset are, in the order in which a size class is dealt out."""

    order: tuple[tuple[Category, int], ...]  # category, number of copies
    share: float  # how far to trust it


def bytes_of(sizes: Sizes) -> int:
    return sum(size * count for size, count in sizes.items())


def copies_of(unit: Sizes, blocks: Sizes) -> int:
    """How many times `blocks` hold `unit`: the rounded ratio that most bytes of `unit` agree on; 0 = none."""
    votes: Counter[int] = Counter()
    for size, count in unit.items():
        votes[round(blocks.get(size, 0) / count)] += size * count
    if not votes:
        return 0
    return max(votes, key=lambda ratio: (votes[ratio], -ratio))


def common_factor(blocks: Sizes, candidates: Sequence[int] = (4, 3, 2)) -> int:
    """The largest of `candidates` that divides the counts of (almost) all size classes, else 1."""
    total = bytes_of(blocks)
    for factor in candidates:
        agreeing = {size: count for size, count in blocks.items() if count % factor == 0}
        contradicted = any(count % factor and count >= CONTRADICTING_BLOCKS for count in blocks.values())
        if contradicted or len(agreeing) < AGREEING_CLASSES:
            continue
        if bytes_of(agreeing) >= AGREEING_BYTES * total:
            return factor
    return 1


def name_copies(copies: int, *, gradients_there: bool | None, step_seen: bool) -> Copies:
    """Which copy is what. `gradients_there` = gradients existed before the recording (None = cannot tell)."""
    parameter, gradient, state = Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE
    if copies <= 0:
        return Copies((), 0.0)
    if copies == 1:
        return Copies(((parameter, 1),), 0.85)
    if copies == 2:
        if gradients_there is None and not step_seen:
            return Copies(((parameter, 1), (Category.UNKNOWN, 1)), 0.6)
        return Copies(((parameter, 1), (gradient if gradients_there else state, 1)), 0.6)
    if copies == 3:
        if gradients_there:
            return Copies(((parameter, 1), (gradient, 1), (state, 1)), 0.6)
        return Copies(((parameter, 1), (state, 2)), 0.85)
    if gradients_there is False:
        return Copies(((parameter, 1), (state, 2), (Category.UNKNOWN, copies - 3)), 0.85)
    return Copies(((parameter, 1), (state, 2), (gradient, 1), (Category.UNKNOWN, copies - 4)), 0.85)


def deal(count: int, unit_count: int, copies: Copies, explained: Mapping[Category, int]) -> list[Category]:
    """Categories for `count` blocks of one size, of which the parameters are `unit_count`.

    `explained` blocks of this size have been judged by other evidence already and are no longer among the `count`.
    What is left over is unknown.
    """
    dealt: list[Category] = []
    for category, times in copies.order:
        wanted = max(0, unit_count * times - explained.get(category, 0))
        dealt += [category] * min(wanted, count - len(dealt))
    return dealt + [Category.UNKNOWN] * (count - len(dealt))
