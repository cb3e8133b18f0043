"""How autocast changes the type of a row of memory."""

from enum import IntEnum


class Kind(IntEnum):
    """How a row's type changes."""

    KEEPS = 0  # float32 stays, or it was no float
    HALVES = 1
    PRODUCT = 2  # halves, and the weights (and a float32 input) are cast for it
    NORM = 3  # stays float32, and is cast for the product that reads it
    ATTENTION = 6  # halves, and a fused kernel takes the place of one that keeps the scores
    OPEN_HALF = 4  # probably halves
    OPEN_KEEP = 5  # probably keeps
    FOLLOWS = 7  # its input's type; `kinds_of` resolves it
    SUMS = 8  # the wider of its operands' types; resolved as well
    JOINS = 9  # the same of what is concatenated
    MASK = 10  # no float: beside what it masks


LOWER = frozenset((Kind.HALVES, Kind.PRODUCT, Kind.ATTENTION, Kind.OPEN_HALF))  # half as large under autocast
