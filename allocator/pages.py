"""The mapped pages of expandable segments while a trace is run backwards, and the address ranges they lie in."""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from .blocks import PoolId
from .config import AllocatorConfig
from .heap import SegmentView
from .restore import Owner, owner_of

FAR = 1 << 44  # room of an expandable segment where nothing above it shows how far it can reach


@dataclass(frozen=True, slots=True)
class Change:
    """Pages that an event maps (size > 0) or unmaps (size < 0)."""

    address: int
    size: int
    stream: int
    pool: int
    large: bool


class Pages:
    """Mapped ranges: disjoint, merged where the owner is the same."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ranges: dict[int, tuple[int, int, int, bool]] = {}  # start -> end, stream, pool, large
        self.journal: list[Change] = []  # what maps and unmaps do, latest first

    def of(self, address: int) -> tuple[int, int, int, bool] | None:
        """(start, end, pool, large) of the range that holds `address`."""
        index = bisect_right(self.starts, address) - 1
        if index < 0:
            return None
        start = self.starts[index]
        end, _, pool, large = self.ranges[start]
        return (start, end, pool, large) if address < end else None

    def overlaps(self, start: int, size: int) -> bool:
        index = bisect_left(self.starts, start + size) - 1
        return index >= 0 and start < self.ranges[self.starts[index]][0]

    def add(self, start: int, size: int, stream: int, pool: int, large: bool) -> None:
        end = start + size
        index = bisect_left(self.starts, start)
        if index < len(self.starts) and self.starts[index] == end and self.ranges[end][1:] == (stream, pool, large):
            del self.starts[index]
            end = self.ranges.pop(end)[0]
        if index and self.ranges[self.starts[index - 1]] == (start, stream, pool, large):
            start = self.starts[index - 1]
        else:
            self.starts.insert(index, start)
        self.ranges[start] = (end, stream, pool, large)

    def remove(self, start: int, size: int) -> bool:
        """False when the range was not mapped as a whole."""
        holder = self.of(start)
        if holder is None or start + size > holder[1]:
            return False
        first, last = holder[0], holder[1]
        _, stream, pool, large = self.ranges.pop(first)
        self.starts.remove(first)
        self.journal.append(Change(start, size, stream, pool, large))
        for left, right in ((first, start), (start + size, last)):
            if left < right:
                self.ranges[left] = (right, stream, pool, large)
                insort(self.starts, left)
        return True

    def undo_unmap(self, start: int, size: int, stream: int, guess: tuple[int, bool]) -> None:
        """Pages are there again. `guess` is their (pool, large) where no range beside them tells it."""
        beside = [holder for holder in (self.of(start - 1), self.of(start + size)) if holder is not None]
        pool, large = beside[0][2:] if beside else guess
        self.add(start, size, stream, pool, large)
        self.journal.append(Change(start, -size, stream, pool, large))


@dataclass(slots=True)
class _Range:
    """One expandable segment while the trace goes on: its lowest page so far and its mapped bytes."""

    low: int
    mapped: int


def reserved_ranges(
    pages: Pages, views: tuple[SegmentView, ...], pool_ids: tuple[PoolId, ...], config: AllocatorConfig
) -> tuple[dict[Owner, list[tuple[int, int]]], int]:
    """Reserved ranges of the expandable segments in `views`, and how large any such range can be.

    A recording shows only pages. A segment begins at the lowest page that it ever has; it ends before whatever comes
    above, and it is dropped when its last page goes.
    """
    alive = _ranges_at_start(views)
    at_start = [(owner, one) for owner, owned in alive.items() for one in owned]
    together = [(one, other) for _, one in at_start for _, other in at_start if one is not other]
    for change in reversed(pages.journal):
        owner = (pool_of(pool_ids, change.pool), change.large, change.stream)
        owned = alive.setdefault(owner, [])
        below = [one for one in owned if one.low <= change.address]
        one = max(below, key=lambda one: one.low) if below else min(owned, key=lambda one: one.low, default=None)
        if one is None:
            one = _Range(change.address, 0)
            together += [(one, other) for others in alive.values() for other in others]
            owned.append(one)
        one.low = min(one.low, change.address)
        one.mapped += change.size
        if one.mapped <= 0:
            owned.remove(one)
    room = min((abs(one.low - other.low) for one, other in together), default=FAR)
    fixed = sorted(view.address for view in views if not view.expandable)
    for _, one in at_start:
        above = bisect_right(fixed, one.low)
        room = min(room, fixed[above] - one.low if above < len(fixed) else FAR)
    ranges: dict[Owner, list[tuple[int, int]]] = {}
    for owner, one in at_start:
        page = config.page_size(owner[1])
        ranges.setdefault(owner, []).append((one.low, room // page * page))
    return ranges, room


def _ranges_at_start(views: tuple[SegmentView, ...]) -> dict[Owner, list[_Range]]:
    """One range per run of pages of one owner that nothing else interrupts."""
    alive: dict[Owner, list[_Range]] = {}
    last: Owner | None = None
    for view in views:
        owner = owner_of(view) if view.expandable else None
        if owner is not None and owner == last:
            alive[owner][-1].mapped += view.total_bytes
        elif owner is not None:
            alive.setdefault(owner, []).append(_Range(view.address, view.total_bytes))
        last = owner
    return alive


def pool_of(pool_ids: tuple[PoolId, ...], pool: int) -> PoolId:
    return pool_ids[pool] if 0 <= pool < len(pool_ids) else (0, 0)
