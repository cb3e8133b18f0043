"""Replay a recorded trace through the allocator: does the model do what PyTorch did?

The state before the first event comes from `rebuild`. Every request of the trace is then made again; a segment gets the
address that the recording shows, and fails where the recording shows that memory was given back first. Compared are the
address of each allocation, each segment event with its size and order, and the layout at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import UnreadableInputError
from ..snapshots.model import Action, BlockState, DeviceSnapshot, Stacks
from .blocks import PoolId
from .config import SMALL_SIZE, AllocatorConfig, from_snapshot_settings
from .expandable import range_bytes
from .heap import BlockView, SegmentView
from .machine import Allocator, OutOfMemory
from .pages import pool_of
from .rebuild import StartState, rebuild
from .recorded_driver import GIVES_BACK, RecordedDriver

ALLOC, FREE_REQUESTED, FREE_COMPLETED = int(Action.ALLOC), int(Action.FREE_REQUESTED), int(Action.FREE_COMPLETED)
SEGMENT_ALLOC, SEGMENT_UNMAP = int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_UNMAP)
SNAPSHOT, OOM = int(Action.SNAPSHOT), int(Action.OOM)
MOST_BYTES = 1 << 60  # no request is larger
OTHER_STREAM = (1 << 64) - 1  # stands for whatever stream a block waited for; the trace does not name it


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """The first place where the model does something else than the recording."""

    event: int  # -1 = before the first event
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the replay of one device's trace found. Sizes are bytes; block bytes are the unit of memory_allocated().

    `block_bytes` has one entry per event: the block size for an alloc event, 0 elsewhere. `older_blocks` are the
    blocks live before the first event, `uncertain_blocks` those of them whose unsplit rest (at most 1 MiB each) no
    recording can tell. `retries` counts requests that gave back everything cached first; without stacks some of them
    may have followed an empty_cache(). Peaks include the state before the first event, whose event is -1.
    """

    alloc_events: int
    matched_addresses: int
    segment_events: int
    matched_segments: int
    layout_matches: bool
    block_bytes: NDArray[np.int64]
    older_blocks: tuple[BlockView, ...]
    uncertain_blocks: tuple[int, ...]
    peak_allocated: int
    peak_allocated_event: int
    peak_reserved: int
    peak_reserved_event: int
    retries: int
    departure: Departure | None
    emptied: tuple[int, ...]  # events at which the program emptied the cache
    start: StartState

    @property
    def exact(self) -> bool:
        """Every address, every segment event and the final layout are those of the recording."""
        return (
            self.departure is None
            and self.matched_addresses == self.alloc_events
            and self.matched_segments == self.segment_events
            and self.layout_matches
        )


def replay(
    device: DeviceSnapshot,
    settings: AllocatorConfig | Mapping[str, object] | None = None,
    stacks: Stacks | None = None,
    total_bytes: int | None = None,
) -> Replay:
    """Replay all events. `settings` are the recording's own: a config, or a snapshot's `allocator_settings`.

    With `stacks`, memory given back by torch.cuda.empty_cache() is told from that of a retry by its stack.
    `total_bytes` is the memory of the device; without it a memory fraction is not applied.
    """
    return Replayer(device, _config_of(settings), stacks, total_bytes).run()


def heap_at(
    device: DeviceSnapshot, settings: AllocatorConfig | Mapping[str, object] | None, event: int
) -> tuple[SegmentView, ...]:
    """Segments and blocks just after `event` (-1 = before the first; an oom event: after its retries).

    Raises UnreadableInputError where the recording contradicts itself so far that there is no such state.
    """
    replayer = Replayer(device, _config_of(settings))
    replayer.advance(event + 1)
    if replayer.broken:
        reason = replayer.departure.reason if replayer.departure else "no reason found"
        raise UnreadableInputError(f"the recording contradicts itself before event {event}: {reason}")
    return tuple(replayer.allocator.segments())


def _config_of(settings: AllocatorConfig | Mapping[str, object] | None) -> AllocatorConfig:
    if isinstance(settings, AllocatorConfig):
        return settings
    return from_snapshot_settings(settings or {})


def _stacks_that_empty(stacks: Stacks) -> frozenset[int]:
    """Indices of the stacks that go through torch.cuda.empty_cache()."""
    frames = {index for index, frame in enumerate(stacks.frames) if frame.name in ("empty_cache", "emptyCache")}
    return frozenset(index for index, stack in enumerate(stacks.stacks) if not frames.isdisjoint(stack))


class Replayer:
    """The forward run; `advance` can stop anywhere."""

    def __init__(
        self,
        device: DeviceSnapshot,
        config: AllocatorConfig,
        stacks: Stacks | None = None,
        total_bytes: int | None = None,
    ) -> None:
        self.device = device
        self.emptying = None if stacks is None else _stacks_that_empty(stacks)
        self.start: StartState = rebuild(device, config)
        views = [view for view in self.start.segments if not view.expandable]
        self.driver = RecordedDriver(segments=[(view.address, view.address + view.total_bytes) for view in views])
        for (_, large, stream), owned in self.start.ranges.items():
            self.driver.reserved.update({address: (size, (stream, large)) for address, size in owned})
        total = (
            total_bytes or (self.start.range_bytes - config.large_segment_size) * 8 // 9
        )  # a range is 9/8 of it, in whole pages
        if total_bytes is None:
            config = replace(config, memory_fraction=None)
        self.collects_unseen = config.garbage_collection_threshold > 0 and config.memory_fraction is None
        self.allocator = Allocator(
            config, emit=self._compare, driver=self.driver, total_bytes=total, segment_events_only=True
        )
        self._blocks, self._statistics = self.allocator.heap.blocks, self.allocator.heap.statistics
        self.allocator.defer_streams = True
        self.allocator.restore(self.start.segments, self.start.ranges)
        trace = device.trace
        self._actions, self._addresses = trace.action.tolist(), trace.address.tolist()
        self._sizes, self._streams = trace.size.tolist(), trace.stream.tolist()
        self.driver.maps = [
            (event, self._addresses[event], self._sizes[event], self._streams[event])
            for event in np.flatnonzero(trace.action == Action.SEGMENT_MAP).tolist()
        ]
        self._moved: dict[int, int] = {}  # recorded address -> the model's, where they differ
        self._unusual = self.start.event_pools is not None or bool(self.driver.maps)
        self._event = 0
        self._prelude: list[int] = []  # segment events seen since the last request
        self.block_bytes = [0] * len(self._actions)
        self.allocs = self.matched_addresses = self.matched_segments = 0
        self.broken = False
        self.emptied: list[int] = []  # events where the program emptied the cache
        self.departure: Departure | None = None
        if self.start.contradiction is not None:
            self.departure = Departure(event=-1, reason=f"trace and segments disagree: {self.start.contradiction}")
        self.peak_allocated, self.peak_allocated_event = self.allocator.allocated_bytes, -1
        self.peak_reserved, self.peak_reserved_event = self.allocator.reserved_bytes, -1

    def run(self) -> Replay:
        self.advance(len(self._actions))
        layout_matches = not self.broken and self._layout_matches()
        if not layout_matches:
            self._depart(len(self._actions) - 1, "the blocks at the end are not those of the snapshot")
        actions = np.asarray(self.device.trace.action)
        older = [block for view in self.start.segments for block in view.blocks]
        return Replay(
            alloc_events=self.allocs,
            matched_addresses=self.matched_addresses,
            segment_events=int(np.count_nonzero((actions >= Action.SEGMENT_ALLOC) & (actions <= Action.SEGMENT_UNMAP))),
            matched_segments=self.matched_segments,
            layout_matches=layout_matches,
            block_bytes=np.array(self.block_bytes, dtype=np.int64),
            older_blocks=tuple(block for block in older if block.state is not BlockState.INACTIVE),
            uncertain_blocks=self.start.uncertain,
            peak_allocated=self.peak_allocated,
            peak_allocated_event=self.peak_allocated_event,
            peak_reserved=self.peak_reserved,
            peak_reserved_event=self.peak_reserved_event,
            retries=self.allocator.memory_stats()["num_alloc_retries"],
            departure=self.departure,
            emptied=tuple(self.emptied),
            start=self.start,
        )

    def advance(self, until: int) -> None:
        """Make the requests of all events before `until`.

        A recording that contradicts itself can drive the model into a state that no allocator has; the run ends there.
        """
        try:
            self._advance(min(until, len(self._actions)))
        except (KeyError, IndexError, ValueError, AssertionError):
            if self.departure is None:
                raise
            self.broken = True

    def _advance(self, until: int) -> None:
        actions, addresses, last = self._actions, self._addresses, len(self._actions)
        while self._event < until:
            event = self._event
            action = actions[event]
            self._event = event + 1
            if action == ALLOC:
                self._alloc(event)
            elif action == FREE_REQUESTED:
                if self._prelude:
                    self._flush()
                following = event + 1
                if (
                    following < last
                    and actions[following] == FREE_COMPLETED
                    and addresses[following] == addresses[event]
                ):
                    self._event = event + 2
                    self._free(event, waits=False)
                else:
                    self._free(event, waits=True)
            elif action == FREE_COMPLETED:
                self._complete(event)
            elif SEGMENT_ALLOC <= action <= SEGMENT_UNMAP:
                self._prelude.append(event)
            elif action == OOM:
                self._oom(event)
            elif action == SNAPSHOT and self._prelude:
                self._flush()
        if until >= last and self._prelude:
            self._flush()

    # ---- requests

    def _alloc(self, event: int) -> None:
        size, recorded = self._sizes[event], self._addresses[event]
        if not 0 < size < MOST_BYTES:
            self._depart(event, f"allocates {size} bytes")
            return
        pool_id = self._prepare(event, fails=False) if self._unusual or self._prelude else None
        try:
            address = self.allocator.malloc(size, self._streams[event], pool_id)
        except OutOfMemory:
            self._depart(event, f"the model finds no memory for {size} bytes that PyTorch allocated")
            return
        self.allocs += 1
        self.block_bytes[event] = self._blocks[address].size
        if address == recorded:
            self.matched_addresses += 1
        else:
            self._depart(event, f"allocates {size} bytes at {address:#x}; PyTorch did at {recorded:#x}")
        if address != recorded or self._moved:
            self._moved[recorded] = address
        if self.driver.upcoming:
            self._missed()
        allocated = self._statistics.allocated_bytes
        if allocated > self.peak_allocated:
            self.peak_allocated, self.peak_allocated_event = allocated, event

    def _oom(self, event: int) -> None:
        size = self._sizes[event]
        if not 0 < size < MOST_BYTES:
            self._depart(event, f"runs out of memory for {size} bytes")
            return
        pool_id = self._prepare(event, fails=True)
        try:
            address = self.allocator.malloc(size, self._streams[event], pool_id)
        except OutOfMemory:
            pass
        else:
            self._depart(event, f"the model serves {size} bytes for which PyTorch ran out of memory")
            self.allocator.free(address)
        if self.driver.upcoming:
            self._missed()
        self.driver.fails = False

    def _prepare(self, event: int, fails: bool) -> PoolId | None:
        """Set the driver up for the request of `event`; the private pool it belongs to, if any."""
        size, stream, driver = self._sizes[event], self._streams[event], self.driver
        pool_id = None
        if self.start.event_pools is not None:
            pool_id = pool_of(self.device.pools, self.start.event_pools[event])
        driver.fails = fails
        if self._prelude:
            self._expect(size, stream, pool_id)
        if driver.maps:
            driver.event = driver.upcoming[0][3] if driver.upcoming else event
            driver.owner = (stream, self.allocator.config.round_size(size) > SMALL_SIZE)
        return pool_id

    def _expect(self, size: int, stream: int, pool_id: PoolId | None) -> None:
        """Say which recorded segment events the next request should cause."""
        if self.collects_unseen:
            self._collect_as_recorded()
        if self._prelude and self._actions[self._prelude[0]] in GIVES_BACK:
            obtains = next((i for i, e in enumerate(self._prelude) if self._actions[e] not in GIVES_BACK), None)
            self.driver.owner = (stream, self.allocator.config.round_size(size) > SMALL_SIZE)
            mapped = None
            if obtains is not None and self._actions[self._prelude[obtains]] == Action.SEGMENT_MAP:
                mapped = self._addresses[self._prelude[obtains]]
            if self._was_emptied(size, stream, pool_id, mapped):
                rest = [] if obtains is None else self._prelude[obtains:]
                self._prelude = self._prelude[:obtains]
                self._flush()
                self._prelude = rest
        self.driver.upcoming.extend(self._row(event) for event in self._prelude)
        self._prelude = []

    def _collect_as_recorded(self) -> None:
        """Garbage collection without the memory fraction it depends on: give back what the recording shows."""
        while self._prelude and self._actions[self._prelude[0]] == Action.SEGMENT_FREE:
            event = self._prelude[0]
            self.driver.upcoming.append(self._row(event))
            if not self.allocator.release_segment(self._addresses[event]):
                self.driver.upcoming.clear()
                return
            del self._prelude[0]

    def _was_emptied(self, size: int, stream: int, pool_id: PoolId | None, mapped: int | None) -> bool:
        """Whether the program emptied the cache before this request, rather than the request's own retry.

        The stack says it where there is one. Otherwise: a request that a cached block could serve does not retry; a
        retry begins with the oversize blocks that suffice; a range that was just dropped was dropped before. What is
        still open after that leaves the same state either way.
        """
        first = self._prelude[0]
        stack = int(self.device.trace.stack[first])
        if self.emptying is not None and stack >= 0:
            return stack in self.emptying
        heap = self.allocator.heap
        room = range_bytes(heap, heap.large if self.driver.owner[1] else heap.small)
        oversize = self.allocator.first_given_back(size, stream, pool_id)
        return (
            self.allocator.could_serve(size, stream, pool_id)
            or (oversize is not None and oversize != self._addresses[first])
            or (mapped is not None and self.driver.needs_dropped_range(mapped, room))
        )

    def _flush(self) -> None:
        """Segment events that no request asked for: the program emptied the cache."""
        if self._prelude:
            self.driver.upcoming.extend(self._row(event) for event in self._prelude)
            self.emptied.append(self._prelude[0])
            self._prelude = []
            self.allocator.empty_cache()
            if self.driver.upcoming:
                self._missed()

    def _row(self, event: int) -> tuple[int, int, int, int]:
        return self._actions[event], self._addresses[event], self._sizes[event], event

    def _missed(self) -> None:
        action, address, size, event = self.driver.upcoming[0]
        name = Action(action).name.lower()
        self._depart(event, f"PyTorch's {name} of {size} bytes at {address:#x} does not happen in the model")
        self.driver.upcoming.clear()

    def _free(self, event: int, waits: bool) -> None:
        recorded = self._addresses[event]
        address = (
            self._moved.pop(recorded, recorded) if self._moved and not waits else self._moved.get(recorded, recorded)
        )
        try:
            if waits:
                self.allocator.record_stream(address, OTHER_STREAM)
            self.allocator.free(address)
        except ValueError:
            self._depart(event, f"frees {recorded:#x}, which is not allocated in the model")

    def _complete(self, event: int) -> None:
        """The end of a free that another stream held up, or whose request was not recorded (skip_actions)."""
        recorded = self._addresses[event]
        address = self._moved.get(recorded, recorded)
        if self.allocator.is_pending(address):
            self._moved.pop(recorded, None)
            self.allocator.complete(address)
        else:
            self._free(event, waits=False)

    # ---- comparing

    def _compare(self, action: Action, address: int, size: int, stream: int) -> None:
        upcoming = self.driver.upcoming
        if upcoming and upcoming[0][:3] == (action, address, size):
            event = upcoming.popleft()[3]
            self.matched_segments += 1
        else:
            event = upcoming[0][3] if upcoming else self._event - 1
            self._depart(
                event, f"the model does {action.name.lower()} of {size} bytes at {address:#x}; PyTorch did not"
            )
            if upcoming and upcoming[0][0] == action:
                upcoming.popleft()
        reserved = self.allocator.reserved_bytes
        if reserved > self.peak_reserved:
            self.peak_reserved, self.peak_reserved_event = reserved, event

    def _depart(self, event: int, reason: str) -> None:
        if self.departure is None:
            self.departure = Departure(event=event, reason=reason)

    def _layout_matches(self) -> bool:
        blocks = self.device.blocks
        recorded = sorted(zip(blocks.address.tolist(), blocks.size.tolist(), blocks.state.tolist(), strict=True))
        model = [(b.address, b.size, int(b.state)) for view in self.allocator.segments() for b in view.blocks]
        return recorded == sorted(model)
