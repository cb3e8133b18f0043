"""What moved against a baseline, by category and by line.

Lines are matched in this order, each once: the same text in the same function and kind of module, then in any module
(what is alive at the peak of a backward); another text in the same function, in the order of the code (an edited line);
the same text elsewhere; the same kind of module elsewhere.
What is below the size that a baseline keeps is told by category.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from ..diagnosers.compare import CategoryChange
from ..diagnosers.interface import Category
from .interface import Line, LineMoved, Measured
from .measure import key_of

_RULES: tuple[Callable[[Line], Hashable | None], ...] = (
    key_of,
    lambda line: None if line.code is None else (line.category, line.file, line.function, line.code),
    lambda line: None if line.file is None else (line.category, line.file, line.function, line.module),
    lambda line: None if line.code is None else (line.category, line.code, line.module),
    lambda line: None if line.module is None else (line.category, line.module),
)


def categories(before: Measured, after: Measured) -> tuple[CategoryChange, ...]:
    """Largest change first; what did not change is left out."""
    rows = [
        CategoryChange(
            category=each,
            before_bytes=before.categories.get(each, 0),
            after_bytes=after.categories.get(each, 0),
        )
        for each in Category
    ]
    return tuple(sorted((row for row in rows if row.bytes), key=lambda row: -abs(row.bytes)))


def lines(before: Measured, after: Measured) -> tuple[LineMoved, ...]:
    """Largest change first; their bytes sum to those of `categories`."""
    rows = [*_matched(before.lines, after.lines), *_rest(before, after)]
    changed = (row for row in rows if row.bytes or _blocks(row.before) != _blocks(row.after))
    return tuple(sorted(changed, key=lambda row: (-abs(row.bytes), row.now.file or "", row.now.line or 0)))


def _matched(before: Sequence[Line], after: Sequence[Line]) -> list[LineMoved]:
    old, new = list(before), list(after)
    found: list[LineMoved] = []
    for rule in _RULES:
        waiting: dict[Hashable, list[Line]] = {}
        for line in old:
            if (key := rule(line)) is not None:
                waiting.setdefault(key, []).append(line)
        left: list[Line] = []
        for line in new:
            same = waiting.get(key) if (key := rule(line)) is not None else None
            if same:
                found.append(LineMoved(before=same.pop(0), after=line))
            else:
                left.append(line)
        taken = {id(row.before) for row in found}
        old, new = [line for line in old if id(line) not in taken], left
    found += [LineMoved(before=line, after=None) for line in old]
    return [*found, *(LineMoved(before=None, after=line) for line in new)]


def _rest(before: Measured, after: Measured) -> list[LineMoved]:
    """The lines that are too small to be kept, one row per category."""
    rows = []
    for category in Category:
        old, new = _small(before, category), _small(after, category)
        if old != new:
            empty = Line(category=category, file=None, function=None, code=None, module=None, bytes=0, blocks=0)
            rows.append(LineMoved(before=replace(empty, bytes=old), after=replace(empty, bytes=new)))
    return rows


def _small(side: Measured, category: Category) -> int:
    return side.categories.get(category, 0) - sum(line.bytes for line in side.lines if line.category is category)


def _blocks(line: Line | None) -> int:
    return line.blocks if line else 0
