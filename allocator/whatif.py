"""The requests of a recording again, under other settings or another capacity: would the job have fitted?

The program is taken as it was: the same requests in the same order, the same frees, the cache emptied where it was.
What the recording does not hold is stated in `assumptions`. Blocks older than the trace keep their recorded places when
only the capacity changes. Under other settings they would lie elsewhere, nobody knows where: they are placed anew, in
address order without gaps, which is the best case; the worst case, in `kept`, leaves them where they are, as if the
setting had been switched on at the first event. All sizes are bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..errors import UnreadableInputError
from ..snapshots.model import Action, BlockState, DeviceSnapshot
from .blocks import DEFAULT_POOL, PoolId
from .config import MIB, AllocatorConfig, from_snapshot_settings
from .driver import FIRST_ADDRESS, VirtualDriver
from .fragmentation import Fit, fit
from .machine import MANY_BYTES, Allocator, OutOfMemory
from .pages import pool_of
from .replay import OTHER_STREAM, Replay, replay

SPLIT_SIZES = tuple(size * MIB for size in (512, 256, 128, 64))  # max_split_size_mb values that guides name most
DIVISIONS = (4, 8)  # roundup_power2_divisions, as in PyTorch's documentation


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first request that finds no memory."""

    event: int  # -1 = already the blocks older than the trace do not fit
    requested: int
    tried: int
    device_free: int
    allocated: int
    reserved: int
    fit: Fit  # how the cached memory stands to it


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One run. Peaks are those reached up to the first failure, or the end."""

    config: AllocatorConfig
    capacity: int | None  # None = no limit
    fits: bool
    peak_reserved: int
    peak_allocated: int
    retries: int  # requests that gave back everything cached first: each costs a synchronisation
    failure: Failure | None
    assumptions: tuple[str, ...]
    kept: "WhatIf | None" = None  # the worst case for older blocks, where settings differ and there are such blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Settings worth trying, best first. Empty with a reason where nothing can be said.

    `recorded` is the recording's own settings with older blocks in their places; `baseline` the same with them placed
    anew as in the rows, which is what a row is to be compared with.
    """

    recorded: WhatIf
    baseline: WhatIf
    rows: tuple[WhatIf, ...]
    reason: str | None = None


def recorded_capacity(device: DeviceSnapshot, replayed: Replay) -> int | None:
    """What the driver could give this process, from the last `oom` event: reserved then, and free then.

    Other processes may have taken or freed memory at other moments. None without such an event.
    """
    ooms = [event for event in device.trace.oom_device_free if 0 <= event < len(device.trace)]
    if not ooms:
        return None
    last = max(ooms)
    reserved = sum(view.total_bytes for view in replayed.start.segments)
    for action, size in zip(device.trace.action[:last].tolist(), device.trace.size[:last].tolist(), strict=True):
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            reserved += size
        elif action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            reserved -= size
    return reserved + device.trace.oom_device_free[last]


def what_if(
    device: DeviceSnapshot,
    settings: AllocatorConfig | Mapping[str, object] | None,
    config: AllocatorConfig | None = None,
    capacity: int | None = None,
    replayed: Replay | None = None,
) -> WhatIf:
    """Run the recorded requests under `config` (None = the recording's own `settings`) with `capacity` bytes.

    `capacity` is what the driver can give this process: the device's total less context and other processes. A request
    that failed in the recording is made, and given back at once when it is served: the program went on without it.
    Raises UnreadableInputError where the recording contradicts itself too far for an answer.
    """
    own = settings if isinstance(settings, AllocatorConfig) else from_snapshot_settings(settings or {})
    known = replayed or replay(device, own)
    return _both(device, known, own, config or own, capacity)


def advise(
    device: DeviceSnapshot,
    settings: AllocatorConfig | Mapping[str, object] | None,
    capacity: int | None = None,
    replayed: Replay | None = None,
) -> Advice:
    """Try the settings worth trying. Nothing that is on already, and never two that exclude each other."""
    own = settings if isinstance(settings, AllocatorConfig) else from_snapshot_settings(settings or {})
    known = replayed or replay(device, own)
    recorded = _both(device, known, own, own, capacity)
    if known.departure is not None:
        return Advice(
            recorded=recorded, baseline=recorded, rows=(), reason=f"the replay departs: {known.departure.reason}"
        )
    if known.alloc_events == 0:
        return Advice(recorded=recorded, baseline=recorded, rows=(), reason="the recording holds no requests")
    baseline = _run(device, known, own, capacity, keep=False) if known.older_blocks else recorded
    rows = [_both(device, known, own, config, capacity) for config in candidates(own)]
    better: dict[tuple[bool, int, int], WhatIf] = {}
    for row in rows:
        if _rank(row) < _rank(baseline):
            better.setdefault(
                _rank(row), row
            )  # of settings that do the same, the least restrictive, which is tried first
    return Advice(recorded=recorded, baseline=baseline, rows=tuple(better[rank] for rank in sorted(better)))


def candidates(own: AllocatorConfig) -> Iterator[AllocatorConfig]:
    """Settings to try beside the recording's own."""
    if not own.expandable_segments:
        yield replace(own, expandable_segments=True, max_split_size=None)
        for size in SPLIT_SIZES:
            if size != own.max_split_size and size >= own.large_segment_size:
                yield replace(own, max_split_size=size)
    if max(own.roundup_divisions) <= 1:
        for divisions in DIVISIONS:
            yield replace(own, roundup_divisions=(divisions,) * len(own.roundup_divisions))


def _rank(row: WhatIf) -> tuple[bool, int, int]:
    """Fitting before failing; then few retries; then little reserved. Of two that fail, the later one is better."""
    if row.failure is not None:
        return True, -row.failure.event, row.peak_reserved
    return False, row.retries, row.peak_reserved


def _both(
    device: DeviceSnapshot, known: Replay, own: AllocatorConfig, config: AllocatorConfig, capacity: int | None
) -> WhatIf:
    """The run, with its worst case beside it where older blocks would have been placed by other settings."""
    if config == own or not known.older_blocks:
        return _run(device, known, config, capacity, keep=True)
    kept = _run(device, known, config, capacity, keep=True)
    return replace(_run(device, known, config, capacity, keep=False), kept=kept)


def _run(device: DeviceSnapshot, known: Replay, config: AllocatorConfig, capacity: int | None, keep: bool) -> WhatIf:
    try:
        run = _Run(device, known, config, capacity, keep)
        failure = run.everything()
    except (KeyError, IndexError, ValueError, AssertionError) as error:
        if known.departure is None:
            raise
        reason = known.departure.reason
        raise UnreadableInputError(f"the recording contradicts itself, no what-if can be told: {reason}") from error
    stats = run.allocator.memory_stats()
    return WhatIf(
        config=config,
        capacity=capacity,
        fits=failure is None,
        peak_reserved=stats["reserved_bytes.all.peak"],
        peak_allocated=stats["allocated_bytes.all.peak"],
        retries=stats["num_alloc_retries"],
        failure=failure,
        assumptions=tuple(run.assumptions),
    )


class _Run:
    """One pass over the requests. `at` maps recorded addresses of live blocks to addresses here."""

    def __init__(
        self,
        device: DeviceSnapshot,
        known: Replay,
        config: AllocatorConfig,
        capacity: int | None,
        keep: bool,
    ) -> None:
        self.device, self.known, self.config, self.capacity = device, known, config, capacity
        self.assumptions: list[str] = []
        self.at: dict[int, int] = {}
        limit = MANY_BYTES if capacity is None else capacity
        if keep:
            self.allocator = Allocator(config, limit, driver=_driver_beside(known, limit))
            self.allocator.restore(known.start.segments, known.start.ranges)
            self.at = {block.address: block.address for block in known.older_blocks}
        else:
            self.allocator = Allocator(config, limit)
        self.allocator.defer_streams = True
        self.keep = keep
        if known.departure is not None:
            self.assumptions.append(f"the replay of the recording departs from it: {known.departure.reason}")
        if bool((device.trace.action == Action.OOM).any()):
            self.assumptions.append("what the program would have asked for after the request that failed is not known")

    def everything(self) -> Failure | None:
        """All requests, until the first that fails."""
        return (self._check_older() if self.keep else self._place_older()) or self._requests()

    def _check_older(self) -> Failure | None:
        """The recorded state before the trace, in what the driver can give."""
        if self.capacity is None or self.allocator.reserved_bytes <= self.capacity:
            return None
        self.allocator.empty_cache()
        self.assumptions.append("what was cached before the trace does not fit and is given back first")
        if self.allocator.reserved_bytes <= self.capacity:
            return None
        error = OutOfMemory(0, 0, 0, 0, self.allocator.allocated_bytes, self.allocator.reserved_bytes)
        return self._failure(-1, error, 0, DEFAULT_POOL)

    def _place_older(self) -> Failure | None:
        older = self.known.older_blocks
        if older:
            total = sum(block.size for block in older)
            self.assumptions.append(f"{len(older)} blocks older than the trace ({total} bytes) are placed without gaps")
        for view in self.known.start.segments:
            for block in view.blocks:
                if block.state is BlockState.INACTIVE:
                    continue
                try:
                    size = block.requested or block.size
                    self.at[block.address] = self.allocator.malloc(size, view.stream, view.pool_id)
                except OutOfMemory as error:
                    return self._failure(-1, error, view.stream, view.pool_id)
                if block.state is BlockState.ACTIVE_PENDING_FREE:
                    self._free(block.address, waits=True)
        return None

    def _requests(self) -> Failure | None:
        trace = self.device.trace
        actions, addresses, sizes = trace.action.tolist(), trace.address.tolist(), trace.size.tolist()
        streams, emptied = trace.stream.tolist(), frozenset(self.known.emptied)
        pools = self.known.start.event_pools
        for event, action in enumerate(actions):
            address = addresses[event]
            if action in (Action.ALLOC, Action.OOM):
                pool_id = DEFAULT_POOL if pools is None else pool_of(self.device.pools, pools[event])
                try:
                    got = self.allocator.malloc(sizes[event], streams[event], pool_id)
                except OutOfMemory as error:
                    return self._failure(event, error, streams[event], pool_id)
                if action == Action.OOM:
                    self.allocator.free(got)
                else:
                    self.at[address] = got
            elif action == Action.FREE_REQUESTED:
                following = event + 1
                paired = following < len(actions) and actions[following] == Action.FREE_COMPLETED
                self._free(address, waits=not (paired and addresses[following] == address))
            elif action == Action.FREE_COMPLETED:
                self._complete(address)
            elif event in emptied:
                self.allocator.empty_cache()
        return None

    def _free(self, recorded: int, waits: bool) -> None:
        address = self.at.get(recorded)
        if address is None:
            return
        if waits:
            self.allocator.record_stream(address, OTHER_STREAM)
        else:
            del self.at[recorded]
        self.allocator.free(address)

    def _complete(self, recorded: int) -> None:
        """The late end of a free; a retry here may have waited for it already."""
        address = self.at.pop(recorded, None)
        if address is not None and self.allocator.is_pending(address):
            self.allocator.complete(address)

    def _failure(self, event: int, error: OutOfMemory, stream: int, pool_id: PoolId) -> Failure:
        return Failure(
            event=event,
            requested=error.requested,
            tried=error.tried,
            device_free=error.device_free,
            allocated=error.allocated,
            reserved=error.reserved,
            fit=fit(self.allocator.segments(), self.config, error.requested, stream, pool_id),
        )


def _driver_beside(known: Replay, capacity: int) -> VirtualDriver:
    """A driver that holds the recorded segments already, and hands out addresses above them."""
    segments = known.start.segments
    ends = [view.address + view.total_bytes for view in segments]
    ends += [address + size for owned in known.start.ranges.values() for address, size in owned]
    return VirtualDriver(capacity, max([FIRST_ADDRESS, *ends]), sum(view.total_bytes for view in segments))
