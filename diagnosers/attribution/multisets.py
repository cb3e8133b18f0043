"""Sizes of blocks without frames. Gradients and optimizer moments repeat the multiset of parameter sizes exactly."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..interface import Category

Sizes = Mapping[int, int]  # requested bytes -> number of blocks

# Shares of facts that were measured on 78 recordings: the factor test needs classes holding this much of the bytes to
# agree, and this many classes; a class with this many blocks may not contradict (pre-norm transformers have 2L+1 norm
# weights, an odd class of tiny blocks that kills a false factor 2).
AGREEING_BYTES = 0.985
AGREEING_CLASSES = 3
CONTRADICTING_BLOCKS = 5
WHOLE = 0.1  # blocks of the same size that are no parameters: one in ten
MOST_COPIES = 6  # parameters, gradients, two moments, and two averages or references
ABSENT = 0.9  # of the unit's bytes, in sizes that no block has: nothing holds the unit


@dataclass(frozen=True, slots=True)
class Copies:
    """What the copies of the parameter multiset are, in the order in which a size class is dealt out."""

    order: tuple[tuple[Category, int], ...]  # category, number of copies
    share: float  # how far to trust it


def bytes_of(sizes: Sizes) -> int:
    return sum(size * count for size, count in sizes.items())


def copies_of(unit: Sizes, blocks: Sizes) -> int:
    """How many times `blocks` hold `unit`: the ratio that most bytes of `unit` agree on; 0 = none.

    Sizes that other things have too, and so come to no whole number, only count where no size does. Sizes that no block
    has only count where they are nearly all of the bytes: gradients of inputs, and those that lie in one buffer.
    """
    votes: Counter[int] = Counter()
    rounded: Counter[int] = Counter()
    for size, count in unit.items():
        ratio = blocks.get(size, 0) / count
        rounded[round(ratio)] += size * count
        if abs(ratio - round(ratio)) <= WHOLE:
            votes[round(ratio)] += size * count
    if bytes_of(unit) == 0:
        return 0
    votes = votes or rounded
    votes = Counter({ratio: n for ratio, n in votes.items() if ratio <= MOST_COPIES}) or votes
    if votes[0] < ABSENT * bytes_of(unit):
        del votes[0]
    return max(votes, key=lambda ratio: (votes[ratio], -ratio), default=0)


def split_copies(blocks: Sizes, unit_bytes: int, candidates: Sequence[int] = (4, 3, 2)) -> int:
    """How many copies of parameters `blocks` hold whose gradients come in other pieces: FSDP2 reduces a unit at once.

    Their bytes are the same to the byte, or nearly so where small blocks are something else's. 0 = none.
    """
    for factor in candidates if unit_bytes else ():
        unit = sum(size * (count // factor) for size, count in blocks.items() if count % factor == 0)
        if abs(unit - unit_bytes) <= (1 - AGREEING_BYTES) * unit_bytes:
            return factor
    return 0


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


# How many tensors of a parameter's size an optimizer keeps for it, by its name or its file's: torch/optim, and the
# papers of those outside it. Where several are at work the most of them counts.
MOMENTS = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "fused_adam", "nadam", "radam", "adamax", "lamb", "fusedlamb"), 2),
    **dict.fromkeys(("sgd", "rmsprop", "adagrad", "lion", "muon", "asgd"), 1),
    **dict.fromkeys(("adafactor",), 0),
}


def most_moments(optimizers: Iterable[str]) -> int | None:
    """None where no optimizer is known by name."""
    return max((MOMENTS[name] for name in optimizers if name in MOMENTS), default=None)


def name_copies(copies: int, *, gradients_there: bool | None, step_seen: bool, moments: int | None = None) -> Copies:
    """Which copy is what.

    `gradients_there` = gradients existed before the recording (None = cannot tell); `moments` = how many the optimizer
    may keep (None = not known, then two). What no optimizer keeps is another model of the same shapes: an average, a
    reference.
    """
    parameter, gradient, state = Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE
    if copies <= 0:
        return Copies((), 0.0)
    if copies == 1:
        return Copies(((parameter, 1),), 0.85)
    if copies == 2 and gradients_there is None and not step_seen:
        return Copies(((parameter, 1), (Category.UNKNOWN, 1)), 0.6)
    left = copies - 1
    told = 1 if gradients_there or (gradients_there is None and left > 2) else 0
    kept = min(left - told, 2 if moments is None else moments)
    order = ((parameter, 1), (state, kept), (gradient, told), (parameter, left - told - kept))
    certain = copies >= (4 if told else 3)
    return Copies(tuple(each for each in order if each[1]), 0.85 if certain else 0.6)


def wanted(unit_count: int, copies: Copies) -> list[tuple[Category, int]]:
    """How many blocks of a size each category takes, of which the parameters are `unit_count`."""
    return [(category, unit_count * times) for category, times in copies.order]


def deal(count: int, wanted: Sequence[tuple[Category, int]], explained: Mapping[Category, int]) -> list[Category]:
    """Categories for `count` blocks of one size.

    `explained` blocks of this size have been judged by other evidence already and are no longer among the `count`.
    What is left over is unknown.
    """
    dealt: list[Category] = []
    known = Counter(explained)
    for category, number in wanted:
        judged = min(known[category], number)
        known[category] -= judged
        dealt += [category] * min(number - judged, count - len(dealt))
    return dealt + [Category.UNKNOWN] * (count - len(dealt))
