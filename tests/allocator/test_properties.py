"""Random programs: whatever is asked, the heap stays sound."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from oomdoc.allocator.config import MIB, SMALL_SIZE, parse
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.snapshots.model import Action, BlockState

CAPACITY = 192 * MIB
CONFIGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "max_split_size_mb:24,max_non_split_rounding_mb:40",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.9",
    "roundup_power2_divisions:[1:4,2:1,4:2,>:8]",
    "large_segment_size_mb:32",
    "expandable_segments:True,garbage_collection_threshold:0.4,per_process_memory_fraction:0.9",
]
sizes = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(MIB, 64 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 12 * MIB, 24 * MIB, 30 * MIB]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), sizes, st.integers(0, 2)),
        st.tuples(st.just("malloc"), sizes, st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 1 << 20), st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 1 << 20), st.just(0)),
        st.tuples(st.just("record_stream"), st.integers(0, 1 << 20), st.integers(0, 2)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Witness:
    """A second, simple account of the same events."""

    def __init__(self):
        self.live = {}
        self.reserved = {}
        self.events = Counter()

    def __call__(self, action, address, size, stream):
        self.events[action] += 1
        if action is Action.ALLOC:
            assert address not in self.live
            self.live[address] = size
        elif action is Action.FREE_COMPLETED:
            assert self.live.pop(address) == size
        elif action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            assert all(address + size <= start or start + room <= address for start, room in self.reserved.items())
            self.reserved[address] = size
        elif action is Action.SEGMENT_FREE:
            assert self.reserved.pop(address) == size
        elif action is Action.SEGMENT_UNMAP:
            self._unmap(address, size)

    def _unmap(self, address, size):
        for start, room in list(self.reserved.items()):
            if start < address + size and address < start + room:
                del self.reserved[start]
                if start < address:
                    self.reserved[start] = address - start
                if start + room > address + size:
                    self.reserved[address + size] = start + room - address - size


def malloc_or_none(allocator, size, stream):
    try:
        return allocator.malloc(size, stream)
    except OutOfMemory as error:
        assert error.device_free == CAPACITY - allocator.reserved_bytes  # noqa: PT017  (both outcomes are fine)
        return None


def best_fit(allocator, size, stream):
    """The free block that the plain rule names, from the outside: smallest, then lowest, of stream and pool."""
    rounded = allocator.config.round_size(size)
    fitting = [
        (block.size, block.address)
        for segment in allocator.segments()
        if segment.stream == stream and segment.large == (rounded > SMALL_SIZE)
        for block in segment.blocks
        if block.state is BlockState.INACTIVE and block.size >= rounded
    ]
    return min(fitting)[1] if fitting else None


def check(allocator, witness):
    stats = allocator.memory_stats()
    end = 0
    live, total, allocated, active = {}, 0, 0, 0
    for segment in allocator.segments():
        assert segment.address >= end, "segments overlap"
        position, previous = segment.address, None
        for block in segment.blocks:
            assert block.address == position, "blocks are contiguous"
            position += block.size
            free = block.state is BlockState.INACTIVE
            assert not (free and previous is BlockState.INACTIVE), "free neighbours merge"
            previous = block.state
            if not free:
                live[block.address] = block.requested
                active += block.size
                assert block.requested <= block.size
            if block.state is BlockState.ACTIVE_ALLOCATED:
                allocated += block.size
        end = position
        total += segment.total_bytes
        assert end - segment.address == segment.total_bytes
    assert live == witness.live
    assert total == sum(witness.reserved.values()) == stats["reserved_bytes.all.current"] == allocator.reserved_bytes
    assert allocated == stats["allocated_bytes.all.current"]
    assert active == stats["active_bytes.all.current"]
    assert sum(live.values()) == stats["requested_bytes.all.current"]
    assert stats["reserved_bytes.all.current"] >= active
    assert total <= CAPACITY
    for name in ("allocated_bytes", "reserved_bytes", "active", "inactive_split", "segment", "inactive_split_bytes"):
        for key in ("current", "allocated", "freed"):
            parts = [stats[f"{name}.{kind}.{key}"] for kind in ("small_pool", "large_pool")]
            assert sum(parts) == stats[f"{name}.all.{key}"] >= 0
        assert stats[f"{name}.all.peak"] >= stats[f"{name}.all.current"]


def inactive_split(allocator):
    """Free blocks that share a segment with others, as the statistics should count them."""
    blocks = [
        block.size
        for segment in allocator.segments()
        if not segment.expandable and len(segment.blocks) > 1
        for block in segment.blocks
        if block.state is BlockState.INACTIVE
    ]
    return len(blocks), sum(blocks)


@settings(max_examples=400, deadline=None)
@given(text=st.sampled_from(CONFIGS), program=steps)
def test_the_heap_stays_sound(text, program):
    """No overlap, conservation of bytes, merged neighbours, statistics that agree with the blocks, best fit."""
    witness = Witness()
    allocator = Allocator(parse(text), CAPACITY, witness)
    held = []
    for step, value, stream in program:
        if step == "malloc":
            allocator.process_events()
            expected = best_fit(allocator, value, stream) if text in ("", "large_segment_size_mb:32") else None
            address = malloc_or_none(allocator, value, stream)
            assert expected in (None, address), "best fit"
            held += [address] if address is not None else []
        elif step == "free" and held:
            allocator.free(held.pop(value % len(held)))
        elif step == "record_stream" and held:
            allocator.record_stream(held[value % len(held)], stream)
        elif step == "empty_cache":
            allocator.empty_cache()
        check(allocator, witness)
        stats = allocator.memory_stats()
        split = stats["inactive_split.all.current"], stats["inactive_split_bytes.all.current"]
        assert split == inactive_split(allocator)
    for address in held:
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    check(allocator, witness)
    assert witness.events[Action.ALLOC] == witness.events[Action.FREE_COMPLETED]


@settings(max_examples=50, deadline=None)
@given(program=steps)
def test_the_same_program_gives_the_same_events(program):
    """Addresses and events are deterministic."""

    def run():
        events = []
        allocator = Allocator(None, CAPACITY, lambda *event: events.append(event))
        held = []
        for step, value, stream in program:
            if step == "malloc":
                address = malloc_or_none(allocator, value, stream)
                held += [address] if address is not None else []
            elif step == "free" and held:
                allocator.free(held.pop(value % len(held)))
        return events

    assert run() == run()
