"""The allocator's state before the first event of a trace, found by running the trace backwards from its end.

Freeing is undone by a block that is live again, allocating by one that is gone. The snapshot knows the size of blocks
that are live at the end; a block older than the trace that is freed in it is known by its requested bytes only, and in
the large pool it may have kept an unsplit rest of up to 1 MiB. That rest is known when a later allocation lands right
behind it (free memory is used from its low end), and when less than 1 MiB of room is there (no free block of the large
pool is that small). Where neither happens no recording can tell; such blocks are taken without a rest and counted.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..snapshots.model import Action, BlockState, DeviceSnapshot
from .blocks import PoolId
from .config import MIN_LARGE_ALLOC, SMALL_BUFFER, SMALL_SIZE, AllocatorConfig
from .heap import BlockView, SegmentView
from .restore import Owner, owner_of

FAR = 1 << 44  # room that an expandable segment is given above its highest known page


@dataclass(slots=True)
class OldBlock:
    """A block that is live at some moment of the backward run."""

    requested: int
    size: int | None  # None = not known
    pending: bool = False  # freed by the program, still used by another stream


@dataclass(slots=True)
class OldSegment:
    size: int
    stream: int
    large: bool
    pool: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """What the allocator held before the first event."""

    segments: tuple[SegmentView, ...]
    ranges: dict[Owner, list[tuple[int, int]]]  # reserved address ranges of expandable segments
    range_bytes: int  # such a range is not larger than this
    event_pools: list[int] | None  # per event, index into DeviceSnapshot.pools; None = all in the default pool
    uncertain: tuple[int, ...]  # addresses of older blocks that may have had an unsplit rest
    contradiction: str | None  # why trace and segments do not belong together


@dataclass(slots=True)
class _Past:
    """The backward run."""

    config: AllocatorConfig
    live: dict[int, OldBlock] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)  # sorted keys of `live`
    segments: dict[int, OldSegment] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)  # sorted keys of `segments`
    pages: "_Pages" = field(default_factory=lambda: _Pages())
    contradiction: str | None = None

    def contradicts(self, event: int, what: str) -> None:
        if self.contradiction is None:
            self.contradiction = f"event {event}: {what}"

    def add(self, address: int, block: OldBlock) -> None:
        self.live[address] = block
        insort(self.order, address)

    def remove(self, address: int) -> None:
        del self.live[address]
        del self.order[bisect_left(self.order, address)]

    def segment_of(self, address: int) -> tuple[int, int, int, bool, bool] | None:
        """(start, end, pool, large, expandable) of what holds `address`."""
        index = bisect_right(self.starts, address) - 1
        if index >= 0:
            start = self.starts[index]
            segment = self.segments[start]
            if address < start + segment.size:
                return start, start + segment.size, segment.pool, segment.large, False
        return self.pages.of(address)


@dataclass(frozen=True, slots=True)
class _Change:
    """Pages that an event maps (size > 0) or unmaps (size < 0)."""

    address: int
    size: int
    stream: int
    pool: int
    large: bool


class _Pages:
    """Mapped ranges of expandable segments: disjoint, merged where the owner is the same."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ranges: dict[int, tuple[int, int, int, bool]] = {}  # start -> end, stream, pool, large
        self.journal: list[_Change] = []  # what maps and unmaps do, latest first

    def of(self, address: int) -> tuple[int, int, int, bool, bool] | None:
        index = bisect_right(self.starts, address) - 1
        if index < 0:
            return None
        start = self.starts[index]
        end, _, pool, large = self.ranges[start]
        return (start, end, pool, large, True) if address < end else None

    def add(self, start: int, size: int, stream: int, pool: int, large: bool) -> None:
        end = start + size
        index = bisect_left(self.starts, start)
        if index < len(self.starts) and self.starts[index] == end:
            following = self.ranges[end]
            if following[1:] == (stream, pool, large):
                end = following[0]
                del self.ranges[self.starts.pop(index)]
        if index and self.ranges[self.starts[index - 1]] == (start, stream, pool, large):
            start = self.starts.pop(index - 1)
        self.ranges[start] = (end, stream, pool, large)
        if start not in self.starts:
            insort(self.starts, start)

    def remove(self, start: int, size: int) -> bool:
        """False when the range was not mapped as a whole."""
        holder = self.of(start)
        if holder is None or start + size > holder[1]:
            return False
        first, last = holder[0], holder[1]
        _, stream, pool, large = self.ranges.pop(first)
        self.starts.remove(first)
        self.journal.append(_Change(start, size, stream, pool, large))
        for left, right in ((first, start), (start + size, last)):
            if left < right:
                self.ranges[left] = (right, stream, pool, large)
                insort(self.starts, left)
        return True

    def near(self, start: int, size: int) -> tuple[int, bool] | None:
        """(pool, large) of a range that touches this one."""
        for address in (start - 1, start + size):
            holder = self.of(address)
            if holder is not None:
                return holder[2], holder[3]
        return None


def rebuild(device: DeviceSnapshot, config: AllocatorConfig) -> StartState:
    """The state before the first event. A contradiction is reported, not raised; the rest is done as far as it goes."""
    past = _Past(config)
    _load_end(past, device)
    event_pools = _run_backwards(past, device)
    segments, uncertain = _views(past, device.pools)
    ranges, range_bytes = _ranges(past, segments, device.pools)
    return StartState(
        segments=segments,
        ranges=ranges,
        range_bytes=range_bytes,
        event_pools=event_pools,
        uncertain=uncertain,
        contradiction=past.contradiction,
    )


def _load_end(past: _Past, device: DeviceSnapshot) -> None:
    columns = device.segments
    rows = zip(
        columns.address.tolist(),
        columns.total_bytes.tolist(),
        columns.stream.tolist(),
        columns.large.tolist(),
        columns.expandable.tolist(),
        columns.pool.tolist(),
        strict=True,
    )
    for address, size, stream, large, is_expandable, pool in rows:
        if is_expandable:
            past.pages.add(address, size, stream, pool, large)
        else:
            past.segments[address] = OldSegment(size, stream, large, pool)
    past.starts = sorted(past.segments)
    blocks = device.blocks
    for address, size, requested, state in zip(
        blocks.address.tolist(), blocks.size.tolist(), blocks.requested.tolist(), blocks.state.tolist(), strict=True
    ):
        if state != BlockState.INACTIVE:
            past.live[address] = OldBlock(requested, size, state == BlockState.ACTIVE_PENDING_FREE)
    past.order = sorted(past.live)


def _run_backwards(past: _Past, device: DeviceSnapshot) -> list[int] | None:
    """Undo every event. Returns the pool of each event where there is more than the default one."""
    trace = device.trace
    addresses, sizes = trace.address.tolist(), trace.size.tolist()
    several = len(device.pools) > 1
    pools = trace.pool.tolist() if several else []
    actions = trace.action.tolist()
    for event in range(len(actions) - 1, -1, -1):
        action, address, size = actions[event], addresses[event], sizes[event]
        if action == Action.ALLOC:
            if several and pools[event] < 0:
                holder = past.segment_of(address)
                pools[event] = holder[2] if holder is not None else 0
            _undo_alloc(past, event, address, size)
        elif action == Action.FREE_COMPLETED:
            if address in past.live:
                past.contradicts(event, f"frees {address:#x}, which is still live later without a new allocation")
            else:
                past.add(address, OldBlock(size, None, pending=True))
        elif action == Action.FREE_REQUESTED:
            _undo_free_request(past, event, address, size)
        elif action in _SEGMENT_ACTIONS:
            _undo_segment(past, event, device)
    return pools if several else None


def _undo_alloc(past: _Past, event: int, address: int, size: int) -> None:
    block = past.live.get(address)
    if block is None:
        past.contradicts(event, f"allocates {address:#x}, which is neither freed later nor live at the end")
        return
    if block.requested != size:
        past.contradicts(event, f"allocates {size} bytes at {address:#x}, later known with {block.requested}")
    past.remove(address)
    index = bisect_left(past.order, address) - 1
    if index < 0:
        return
    before = past.order[index]
    older = past.live[before]
    if older.size is None:
        holder = past.segment_of(address)
        if holder is not None and holder[0] <= before:
            older.size = address - before  # free memory is used from its low end, which is where `older` ends


def _undo_free_request(past: _Past, event: int, address: int, size: int) -> None:
    block = past.live.get(address)
    if block is None:
        past.contradicts(event, f"asks to free {address:#x}, which no event or block shows afterwards")
    else:
        block.pending = False


_SEGMENT_ACTIONS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


def _undo_segment(past: _Past, event: int, device: DeviceSnapshot) -> None:
    trace = device.trace
    action, address, size = int(trace.action[event]), int(trace.address[event]), int(trace.size[event])
    stream, pool = int(trace.stream[event]), max(int(trace.pool[event]), 0)
    if action == Action.SEGMENT_ALLOC:
        segment = past.segments.pop(address, None)
        if segment is None or segment.size != size:
            past.contradicts(event, f"obtains a segment of {size} bytes at {address:#x} that is not there afterwards")
        if segment is not None:
            past.starts.remove(address)
    elif action == Action.SEGMENT_FREE:
        if past.segment_of(address) is not None:
            past.contradicts(event, f"gives back a segment at {address:#x} that is still there afterwards")
        else:
            past.segments[address] = OldSegment(size, stream, size >= MIN_LARGE_ALLOC, pool)
            insort(past.starts, address)
    elif action == Action.SEGMENT_MAP:
        if not past.pages.remove(address, size):
            past.contradicts(event, f"maps {size} bytes at {address:#x} that are not there afterwards")
    elif past.pages.of(address) is not None:
        past.contradicts(event, f"unmaps {address:#x}, which is still mapped afterwards")
    else:
        near = past.pages.near(address, size)
        guess = (pool, size != SMALL_BUFFER and size % past.config.large_segment_size == 0)
        pool, large = near or guess
        past.pages.add(address, size, stream, pool, large)
        past.pages.journal.append(_Change(address, -size, stream, pool, large))


def _views(past: _Past, pool_ids: tuple[PoolId, ...]) -> tuple[tuple[SegmentView, ...], tuple[int, ...]]:
    """Segments with their blocks, by address, and the addresses of blocks whose size is not certain."""
    views: list[SegmentView] = []
    uncertain: list[int] = []
    ranges = [(start, s.size, s.stream, s.large, False, s.pool) for start, s in past.segments.items()]
    for start, (end, stream, pool, large) in past.pages.ranges.items():
        ranges.append((start, end - start, stream, large, True, pool))
    held = 0
    for start, size, stream, large, is_expandable, pool in sorted(ranges):
        inside = past.order[bisect_left(past.order, start) : bisect_left(past.order, start + size)]
        held += len(inside)
        keeps_rest = large and not is_expandable
        blocks = tuple(_block_views(past, start, start + size, inside, keeps_rest, uncertain))
        views.append(SegmentView(start, size, stream, large, is_expandable, _pool_id(pool_ids, pool), blocks))
    if held != len(past.order):
        past.contradicts(-1, "blocks older than the trace lie outside every segment")
    return tuple(views), tuple(uncertain)


def _block_views(
    past: _Past, start: int, end: int, inside: list[int], keeps_rest: bool, uncertain: list[int]
) -> Iterator[BlockView]:
    position = start
    for index, address in enumerate(inside):
        if address < position:
            past.contradicts(-1, f"blocks older than the trace overlap at {address:#x}")
            continue
        if address > position:
            yield BlockView(position, address - position, 0, BlockState.INACTIVE)
        block = past.live[address]
        room = (inside[index + 1] if index + 1 < len(inside) else end) - address
        size = block.size
        if size is None:
            size, certain = _size_of_older(past.config, block.requested, room, keeps_rest)
            if not certain:
                uncertain.append(address)
        state = BlockState.ACTIVE_PENDING_FREE if block.pending else BlockState.ACTIVE_ALLOCATED
        size = min(size, room)
        yield BlockView(address, size, block.requested, state)
        position = address + size
    if position < end:
        yield BlockView(position, end - position, 0, BlockState.INACTIVE)


def _size_of_older(config: AllocatorConfig, requested: int, room: int, keeps_rest: bool) -> tuple[int, bool]:
    """Block bytes of a freed older block with `room` up to its next live neighbour, and whether that is certain."""
    rounded = config.round_size(requested)
    if not keeps_rest or room == rounded:
        return rounded, True
    if config.max_split_size is not None and rounded >= config.max_split_size:
        return room, True  # never split: the block is the whole segment
    if room - rounded <= SMALL_SIZE:
        return room, True  # no free block of the large pool is that small
    return rounded, False


@dataclass(slots=True)
class _Range:
    """One expandable segment while the trace goes on: its lowest page so far and its mapped bytes."""

    low: int
    mapped: int


def _ranges(
    past: _Past, views: tuple[SegmentView, ...], pool_ids: tuple[PoolId, ...]
) -> tuple[dict[Owner, list[tuple[int, int]]], int]:
    """Reserved ranges of the expandable segments there are at the start, and how large any such range can be.

    A recording shows only pages. A segment begins at the lowest page that it ever has; it ends before whatever comes
    above, and it is dropped when its last page goes.
    """
    alive = _ranges_at_start(views)
    at_start = [(owner, one) for owner, owned in alive.items() for one in owned]
    together = [(one, other) for _, one in at_start for _, other in at_start if one is not other]
    for change in reversed(past.pages.journal):
        owner = (_pool_id(pool_ids, change.pool), change.large, change.stream)
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
        page = past.config.page_size(owner[1])
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


def _pool_id(pool_ids: tuple[PoolId, ...], pool: int) -> PoolId:
    return pool_ids[pool] if pool < len(pool_ids) else (0, 0)
