"""Whose backward made a row: told by what the engine lets go of.

A node of the graph gives back what it saved when it is done, so a row belongs to the operation whose saved tensor is
freed next. What an operation saved is mostly what it read: the result of the call before it in the forward. Masks,
statistics and the results of functions that are differentiated through their result (softmax, tanh) are its own.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OWN_RESULT = re.compile(r"^(Softmax|LogSoftmax|Tanh|Sigmoid|ReLU|MaxPool\dd|CrossEntropyLoss|NLLLoss)$")


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that one line of one call made, in the order of their birth."""

    path: str
    rows: tuple[int, ...]


def segments_of(rows: Iterable[tuple[int, int]], paths: Mapping[int, str]) -> list[Segment]:
    """`rows`: (row, stack) by birth; those without a path stand for themselves under the empty path."""
    found: list[Segment] = []
    last: tuple[str, int] | None = None
    for row, stack in rows:
        key = (paths.get(row, ""), stack)
        if key == last:
            found[-1] = Segment(found[-1].path, (*found[-1].rows, row))
        else:
            found.append(Segment(key[0], (row,)))
        last = key
    return found


def readers(
    segments: list[Segment], classes: Mapping[str, str], saves_result: Mapping[int, bool], size: NDArray[np.int64]
) -> dict[int, str]:
    """Row of a forward -> path of the call whose backward frees it."""
    found: dict[int, str] = {}
    for position, segment in enumerate(segments):
        following = segments[position + 1].path if position + 1 < len(segments) else segment.path
        own = bool(OWN_RESULT.match(classes.get(segment.path, "")))
        largest = max(int(size[row]) for row in segment.rows)
        output = max(row for row in segment.rows if int(size[row]) == largest)
        for row in segment.rows:
            mine = own or row != output or saves_result.get(row, False)
            found[row] = segment.path if mine else following
    return found


def owners(births: NDArray[np.float64], frees: NDArray[np.float64], paths: list[str], otherwise: str) -> list[str]:
    """The path for each row born in a backward: of the saved row that is freed next. `frees` is in ascending order."""
    at = np.searchsorted(frees, births, side="left")
    return [paths[i] if i < len(paths) else otherwise for i in at.tolist()]
