"""Which type the operations have that follow their inputs under autocast: activations, dropout, sums.

What an operation read is told by sizes and lifetimes, as no recording says it: the last tensor of its result's size
that is alive when the result is made.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from .autocast_kinds import LOWER, Kind
from .passes import Iteration, activation_rows, iterations
from .whatif_timeline import Timeline

LOOKED_AT = 64  # of the tensors of one size, the last ones
JUST_BEFORE = 4  # tensors alive when a module begins, among which its input is


class Forward:
    """The activations of one forward in order, and what each may have read."""

    def __init__(self, timeline: Timeline, iteration: Iteration) -> None:
        mine = activation_rows(timeline) | timeline.is_category(Category.INPUT)
        mine &= (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start)
        rows = np.flatnonzero(mine)
        self.timeline, self.iteration = timeline, iteration
        self.rows = rows[np.argsort(timeline.birth[rows], kind="stable")]
        self._births = timeline.birth[self.rows]
        self._begun = _begun(timeline, iteration)

    def alike(self) -> dict[int, list[int]]:
        """By row: those of its own size that are alive when it is made, the last first."""
        by_size: dict[int, list[int]] = defaultdict(list)
        found: dict[int, list[int]] = {}
        for row in self.rows.tolist():
            same = by_size[int(self.timeline.size[row])]
            found[row] = [each for each in reversed(same[-LOOKED_AT:]) if self._lives(each, row)]
            same.append(row)
        return found

    def added(self, row: int, alike: list[int], kinds: NDArray[np.int8]) -> list[int]:
        """What a sum read, of those of its size; one, where the other is not in sight.

        Two results of products that nothing saved (a branch and a shortcut), or what nothing saved and what the module
        was called with, where a norm reads that first: where a product does, it is the branch's.
        """
        start = self._begun.get(int(self.timeline.module[row]), float("-inf"))
        index = int(np.searchsorted(self._births, start))
        unsaved = [each for each in alike if self.timeline.death[each] <= self.iteration.backward_start]
        products = [each for each in unsaved if kinds[each] == Kind.PRODUCT and self.timeline.birth[each] >= start]
        if len(products) > 1:
            return products[:2]
        before = self.rows[:index]
        before = before[self.timeline.death[before] > start][-JUST_BEFORE:]
        entered = [each for each in alike if each in before][:1]
        entered = entered if kinds[self.rows[index]] == Kind.NORM else []
        return [*entered, *(each for each in unsaved if each not in entered)][: 1 + len(entered)]

    def joined(self, row: int) -> list[int]:
        """Two tensors alive that are together as large, the last ones; else the last one."""
        index = int(np.searchsorted(self._births, self.timeline.birth[row]))
        last = [
            each for each in reversed(self.rows[max(0, index - LOOKED_AT) : index].tolist()) if self._lives(each, row)
        ]
        sizes = self.timeline.size
        for i, one in enumerate(last):
            for other in last[i + 1 :]:
                if sizes[one] + sizes[other] == sizes[row]:
                    return [one, other]
        return last[:1]

    def beside_larger(self, row: int) -> bool:
        """Whether its module made one four times as large just before or after it: then it is a mask of that one."""
        index = int(np.searchsorted(self._births, self.timeline.birth[row]))
        near = self.rows[max(0, index - 1) : index + 2]
        near = near[self.timeline.module[near] == self.timeline.module[row]]
        return bool((self.timeline.size[near] >= 4 * self.timeline.size[row]).any())

    def _lives(self, each: int, row: int) -> bool:
        return bool(self.timeline.death[each] > self.timeline.birth[row])


def resolved(timeline: Timeline, kinds: NDArray[np.int8]) -> NDArray[np.int8]:
    """`kinds` with KEEPS, HALVES or MASK in the place of FOLLOWS, SUMS and JOINS.

    A sum, and what is joined, has the lower type where both parts do. With one operand of a sum in sight the other is
    a parameter or a broadcast one: float32.
    """
    new: NDArray[np.int8] = kinds.copy()
    open_kinds = (Kind.FOLLOWS, Kind.SUMS, Kind.JOINS)
    of_module: dict[tuple[int, int], int] = {}
    for iteration in iterations(timeline):
        forward = Forward(timeline, iteration)
        for row, alike in forward.alike().items():
            kind = int(kinds[row])
            if kind not in open_kinds:
                continue
            read = forward.joined(row) if kind == Kind.JOINS else []
            if kind == Kind.SUMS:
                read = forward.added(row, alike, new)
            lower = all(int(new[each]) in LOWER for each in read or alike[:1])  # a sum's line has more than the sum
            lower &= kind != Kind.SUMS or len(read) != 1
            new[row] = Kind.HALVES if lower else Kind.KEEPS
            if not (read or alike) and forward.beside_larger(row):
                new[row] = Kind.MASK
            of_module.setdefault((int(timeline.module[row]), kind), int(new[row]))
    for row in np.flatnonzero(np.isin(new, open_kinds)).tolist():  # backward, and what no forward has
        other = Kind.KEEPS if new[row] == Kind.SUMS else Kind.HALVES
        new[row] = of_module.get((int(timeline.module[row]), int(new[row])), other)
    return new


def _begun(timeline: Timeline, iteration: Iteration) -> dict[int, float]:
    """By module: the first birth in it or in one inside it, in this forward."""
    inside = (timeline.birth >= iteration.start) & (timeline.birth < iteration.backward_start) & (timeline.module >= 0)
    modules, first = np.unique(timeline.module[inside], return_inverse=True)
    own = np.full(len(modules), np.inf)
    np.minimum.at(own, first, timeline.birth[inside])
    of_path: dict[str, float] = {}
    for module, time in zip(modules.tolist(), own.tolist(), strict=True):
        path = timeline.modules[module]
        while path:
            of_path[path] = min(of_path.get(path, np.inf), time)
            path = path.rpartition(".")[0]
    return {module: of_path[timeline.modules[module]] for module in modules.tolist() if timeline.modules[module]}
