"""Which call site of one recording is which of another: the lines may have moved, or have another name.

Rows are matched in this order, each once:

1. the same line of the same function, where that function is as it was: both recordings name the same lines of it,
   or one of them some of the other's, as when it ended earlier;
2. in a function that differs: blocks of the same sizes in the same order, then the shift of its lines that fits most
   of them, then the nearest line;
3. the same path of modules;
4. the same sizes.

A file is the same by its path, else by the longest end of the path that they share, else by its lines. But for a
shift, a line that both recordings name is not a line that moved. Limit: without the source, an edit inside a function
whose sizes changed as well is a guess, and the row says how it was matched.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import Enum
from pathlib import PurePosixPath
from typing import TypeVar

from ..snapshots.model import Frame
from .call_sites import Lines, like_module
from .interface import Category, DeviceProfile, LiveBlock, Location

# Above so many pairs of lines in one function no shift is searched and lines pair in their order.
MOST_PAIRS = 100_000
MOST_ROWS = 2_000
# A file of another name is the same where more than this share of all their lines is in both.
ALIKE = 0.5


class Match(str, Enum):
    """How two rows were found to be the same."""

    LINE = "same-line"
    FUNCTION = "same-function"
    MODULE = "same-module"
    SIZES = "same-sizes"
    CATEGORY = "same-category"  # neither has a line or a module
    NONE = "unmatched"  # in one of the recordings only


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Live bytes of one line, category and kind of module (`blocks.*.mlp`) at the moment looked at."""

    category: Category
    location: Location | None
    module: str | None  # the one module, else what its modules have in common
    bytes: int
    sizes: tuple[tuple[int, int], ...]  # (requested bytes, how many), by size

    @property
    def count(self) -> int:
        return sum(count for _, count in self.sizes)

    @property
    def kind(self) -> tuple[Category, str | None]:
        return self.category, like_module(self.module)


Key = TypeVar("Key", bound=Hashable)
Pair = tuple[Site | None, Site | None, Match]
CodeLines = Mapping[tuple[str, str], frozenset[int]]  # file and function -> lines that the recording names


def sites(profile: DeviceProfile) -> tuple[Site, ...]:
    """The live blocks of a device by category, line and kind of module; their bytes sum to the live bytes."""
    lines = Lines(profile.snapshot)
    found: dict[tuple[Category, Location | None, str | None], list[LiveBlock]] = {}
    for block in profile.live:
        found.setdefault((block.category, lines.of(block.stack), like_module(block.module)), []).append(block)
    rows = []
    for (category, location, kind), blocks in found.items():
        names = {block.module for block in blocks}
        sizes = Counter(block.requested_bytes for block in blocks)
        rows.append(
            Site(
                category=category,
                location=location,
                module=names.pop() if len(names) == 1 else kind,
                bytes=sum(block.requested_bytes for block in blocks),
                sizes=tuple(sorted(sizes.items())),
            )
        )
    return tuple(sorted(rows, key=_order))


def code_lines(frames: Iterable[Frame]) -> CodeLines:
    """All lines that the stacks of a recording name, also of blocks that were freed."""
    found: dict[tuple[str, str], set[int]] = {}
    for frame in frames:
        found.setdefault((frame.filename, frame.name), set()).add(frame.line)
    return {key: frozenset(lines) for key, lines in found.items()}


def pair(before: Sequence[Site], after: Sequence[Site], code_before: CodeLines, code_after: CodeLines) -> list[Pair]:
    """Every site of both, each once: in a pair, or alone."""
    return _Matching(before, after, code_before, code_after).run()


class _Matching:
    """The sites that are left, while one rule after the other takes pairs away."""

    def __init__(self, before: Sequence[Site], after: Sequence[Site], was: CodeLines, now: CodeLines) -> None:
        self.before, self.after = list(before), list(after)
        self.files = same_files(was, now)
        self.was = {(self.files.get(file, file), name): lines for (file, name), lines in was.items()}
        self.now = now
        self.pairs: list[Pair] = []

    def run(self) -> list[Pair]:
        self._functions()
        self._by(lambda site: None if site.kind[1] is None else site.kind, Match.MODULE)
        self._by(lambda site: site.category if site.location is None else None, Match.CATEGORY)
        self._by(lambda site: (site.category, site.sizes), Match.SIZES)
        alone: list[Pair] = [(site, None, Match.NONE) for site in self.before]
        return [*self.pairs, *alone, *((None, site, Match.NONE) for site in self.after)]

    def _take(self, found: Sequence[Pair]) -> None:
        self.before = _without(self.before, [old for old, _, _ in found])
        self.after = _without(self.after, [new for _, new, _ in found])
        self.pairs += found

    def _earlier_place(self, site: Site) -> tuple[str, str] | None:
        """File (by its later name) and function of an earlier site."""
        where = site.location
        return None if where is None else (self.files.get(where.file, where.file), where.function)

    def _functions(self) -> None:
        old, new = _grouped(self.before, self._earlier_place), _grouped(self.after, _place)
        found: list[Pair] = []
        for key in [place for place in old if place in new]:
            was, now = self.was.get(key, frozenset()), self.now.get(key, frozenset())
            for one, other in in_function(old[key], new[key], was, now):
                found.append((one, other, Match.LINE if one.location == other.location else Match.FUNCTION))
        self._take(found)

    def _by(self, key: Callable[[Site], Hashable | None], match: Match) -> None:
        """Pairs the sites with the same key, in order; not two whose lines are in both recordings."""
        old, new = _grouped(self.before, key), _grouped(self.after, key)
        found: list[Pair] = []
        for each in [name for name in old if name in new]:
            gone, stayed = _split(old[each], lambda site: _named(self._earlier_place(site), site, self.now))
            fresh, known = _split(new[each], lambda site: _named(_place(site), site, self.was))
            both = min(len(gone), len(fresh))
            pairs = [*zip(gone, fresh, strict=False), *zip(gone[both:], known, strict=False)]
            pairs += zip(stayed, fresh[both:], strict=False)
            found += [(one, other, match) for one, other in pairs]
        self._take(found)


def in_function(
    old: Sequence[Site], new: Sequence[Site], was: frozenset[int], now: frozenset[int]
) -> list[tuple[Site, Site]]:
    """Pairs within one function. `was` and `now` are all its lines that the recordings name."""
    if was == now:
        return _shifted(old, new, 0)
    found = _in_order(old, new)
    shift, fitting = _best_shift(was, now)
    if len(found) < max(2, min(len(old), len(new))):  # else all of one side is found again: that is no chance
        if was <= now or now <= was:
            return _shifted(old, new, 0)
        if fitting == min(len(was), len(now)) > 1:
            return _shifted(old, new, shift)
        found = [(one, other) for one, other in found if not (_line(one) in now and _line(other) in was)]
    found += _shifted(*_left(old, new, found), shift)
    return found + _nearest(*_left(old, new, found), was, now, shift)


def _left(
    old: Sequence[Site], new: Sequence[Site], found: Sequence[tuple[Site, Site]]
) -> tuple[list[Site], list[Site]]:
    return _without(old, [one for one, _ in found]), _without(new, [other for _, other in found])


def _without(rows: Sequence[Site], taken: Iterable[Site | None]) -> list[Site]:
    gone = {id(each) for each in taken}
    return [row for row in rows if id(row) not in gone]


def same_files(before: CodeLines, after: CodeLines) -> dict[str, str]:
    """Earlier file -> later file: the same path, else the same name and the longest common end, else like lines."""
    old, new = {file for file, _ in before}, {file for file, _ in after}
    found = {file: file for file in old & new}
    by_name: dict[str, list[str]] = {}
    for file in sorted(new - old):
        by_name.setdefault(_parts(file)[-1], []).append(file)
    ranked = [
        (-_common_end(file, other), file, other)
        for file in sorted(old - new)
        for other in by_name.get(_parts(file)[-1], ())[:MOST_ROWS]
    ]
    taken: set[str] = set()
    for _, file, other in sorted(ranked):
        if file not in found and other not in taken:
            found[file] = other
            taken.add(other)
    return found | _alike_files(_by_file(before, old - found.keys()), _by_file(after, new - old - taken))


def _by_file(code: CodeLines, files: Set[str]) -> dict[str, set[tuple[str, int]]]:
    found: dict[str, set[tuple[str, int]]] = {file: set() for file in sorted(files)}
    for (file, function), lines in code.items():
        if file in found:
            found[file].update((function, line) for line in lines)
    return found


def _alike_files(
    before: Mapping[str, Set[tuple[str, int]]], after: Mapping[str, Set[tuple[str, int]]]
) -> dict[str, str]:
    """Files of another name in which most of the functions and lines are the same."""
    if len(before) * len(after) > MOST_PAIRS:
        return {}
    ranked = [
        (-len(was & now) / len(was | now), file, other) for file, was in before.items() for other, now in after.items()
    ]
    found: dict[str, str] = {}
    for score, file, other in sorted(ranked):
        if -score > ALIKE and file not in found and other not in found.values():
            found[file] = other
    return found


def _parts(file: str) -> tuple[str, ...]:
    return PurePosixPath(file.replace("\\", "/")).parts or ("",)


def _common_end(one: str, other: str) -> int:
    shared = 0
    for left, right in zip(reversed(_parts(one)), reversed(_parts(other)), strict=False):
        if left != right:
            break
        shared += 1
    return shared


def _in_order(old: Sequence[Site], new: Sequence[Site]) -> list[tuple[Site, Site]]:
    """Rows of the same kind and the same sizes that follow one another as before."""
    if max(len(old), len(new)) > MOST_ROWS:
        return []
    tokens = [[(site.kind, site.sizes) for site in side] for side in (old, new)]
    blocks = SequenceMatcher(None, tokens[0], tokens[1], autojunk=False).get_matching_blocks()
    return [(old[block.a + at], new[block.b + at]) for block in blocks for at in range(block.size)]


def _best_shift(was: frozenset[int], now: frozenset[int]) -> tuple[int, int]:
    """What to add to the earlier lines so that most of them are later ones, the smallest of the best; and how many."""
    if not was or not now or len(was) * len(now) > MOST_PAIRS:
        return 0, len(was & now)
    shifts = Counter(later - earlier for earlier in was for later in now)
    shift = max(shifts, key=lambda each: (shifts[each], -abs(each), each))
    return shift, shifts[shift]


def _shifted(old: Sequence[Site], new: Sequence[Site], shift: int) -> list[tuple[Site, Site]]:
    later = {(site.kind, _line(site)): site for site in new}
    pairs = ((site, later.get((site.kind, _line(site) + shift))) for site in old)
    return [(site, other) for site, other in pairs if other is not None]


def _nearest(
    old: Sequence[Site], new: Sequence[Site], was: frozenset[int], now: frozenset[int], shift: int
) -> list[tuple[Site, Site]]:
    """The closest lines of the same kind first; not two lines that each of the recordings names."""
    if len(old) * len(new) > MOST_PAIRS:
        return []
    ranked = sorted(
        (abs(_line(other) - _line(site) - shift), left, right)
        for left, site in enumerate(old)
        for right, other in enumerate(new)
        if site.kind == other.kind and not (_line(site) + shift in now and _line(other) - shift in was)
    )
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for _, left, right in ranked:
        if left not in pairs and right not in taken:
            pairs[left] = right
            taken.add(right)
    return [(old[left], new[right]) for left, right in pairs.items()]


def _line(site: Site) -> int:
    return site.location.line if site.location else 0


def _place(site: Site) -> tuple[str, str] | None:
    return None if site.location is None else (site.location.file, site.location.function)


def _named(place: tuple[str, str] | None, site: Site, lines: CodeLines) -> bool:
    return place is not None and _line(site) in lines.get(place, ())


def _split(found: Iterable[Site], known: Callable[[Site], bool]) -> tuple[list[Site], list[Site]]:
    """Those whose line the other recording does not name, and those whose line it does."""
    parts: tuple[list[Site], list[Site]] = ([], [])
    for site in found:
        parts[known(site)].append(site)
    return parts


def _grouped(found: Iterable[Site], key: Callable[[Site], Key | None]) -> dict[Key, list[Site]]:
    groups: dict[Key, list[Site]] = {}
    for site in found:
        name = key(site)
        if name is not None:
            groups.setdefault(name, []).append(site)
    return groups


def _order(site: Site) -> tuple[str, int, str, str]:
    where = site.location
    return (where.file if where else "", where.line if where else 0, site.category.value, site.module or "")
