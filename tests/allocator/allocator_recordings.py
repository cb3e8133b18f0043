"""Recordings made by the allocator itself, as snapshot records."""

import numpy as np
from hypothesis import strategies as st
from oomdoc.allocator.config import MIB
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.snapshots.model import Action, Blocks, DeviceSnapshot, Segments, Trace

sizes = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(MIB, 64 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB, 12 * MIB, 24 * MIB]),
)


def programs(streams):
    number = st.integers(0, 1 << 20)
    step = st.one_of(
        st.tuples(st.just("malloc"), sizes, st.sampled_from(streams)),
        st.tuples(st.just("malloc"), sizes, st.just(0)),
        st.tuples(st.just("free"), number, st.just(0)),
        st.tuples(st.just("free"), number, st.just(0)),
        st.tuples(st.just("record_stream"), number, st.integers(0, 2)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
    )
    return st.lists(step, max_size=80)


class Recorder:
    """An allocator whose events are kept; `snapshot(first)` is what a recording from event `first` on would show."""

    def __init__(self, config, capacity, **options):
        self.events = []
        self.allocator = Allocator(config, capacity, lambda *event: self.events.append(event), **options)
        self.held = []

    def run(self, program):
        """Steps as in test_properties; what cannot be served is left out."""
        for step, value, stream in program:
            if step == "malloc":
                try:
                    self.held.append(self.allocator.malloc(value, stream))
                except OutOfMemory:
                    continue
            elif step == "empty_cache":
                self.allocator.empty_cache()
            elif self.held and step == "free":
                self.allocator.free(self.held.pop(value % len(self.held)))
            elif self.held:
                self.allocator.record_stream(self.held[value % len(self.held)], stream)
        return self

    def snapshot(self, first=0):
        return device_snapshot(self.events[first:], self.allocator.segments())


def device_snapshot(events, segments):
    segments = list(segments)
    pools = [(0, 0)]
    for segment in segments:
        if segment.pool_id not in pools:
            pools.append(segment.pool_id)
    rows = [(index, block) for index, segment in enumerate(segments) for block in segment.blocks]
    none = [-1] * len(events)
    return DeviceSnapshot(
        device=0,
        trace=Trace(
            action=np.array([event[0] for event in events], np.uint8),
            address=np.array([0 if event[0] is Action.OOM else event[1] for event in events], np.uint64),
            size=np.array([event[2] for event in events], np.int64),
            stream=np.array([event[3] for event in events], np.uint64),
            time_us=np.array(none, np.int64),
            stack=np.array(none, np.int32),
            pool=np.array(none, np.int32),
        ),
        segments=Segments(
            address=np.array([segment.address for segment in segments], np.uint64),
            total_bytes=np.array([segment.total_bytes for segment in segments], np.int64),
            stream=np.array([segment.stream for segment in segments], np.uint64),
            large=np.array([segment.large for segment in segments], np.bool_),
            expandable=np.array([segment.expandable for segment in segments], np.bool_),
            pool=np.array([pools.index(segment.pool_id) for segment in segments], np.int32),
            stack=np.array([-1] * len(segments), np.int32),
        ),
        blocks=Blocks(
            address=np.array([block.address for _, block in rows], np.uint64),
            size=np.array([block.size for _, block in rows], np.int64),
            requested=np.array([block.requested for _, block in rows], np.int64),
            state=np.array([block.state for _, block in rows], np.uint8),
            segment=np.array([index for index, _ in rows], np.int32),
            stack=np.array([-1] * len(rows), np.int32),
        ),
        pools=tuple(pools),
    )
