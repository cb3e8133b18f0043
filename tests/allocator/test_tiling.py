"""Block sizes read off the layout are those that the allocator handed out."""

import csv
from pathlib import Path

import numpy as np
import pytest
from allocator_recordings import Recorder
from hypothesis import given, settings
from hypothesis import strategies as st
from oomdoc.allocator.config import MIB, from_snapshot_settings, parse
from oomdoc.allocator.replay import replay
from oomdoc.allocator.tiling import block_bytes
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Action
from oomdoc.snapshots.timeline import extent, lifetimes

CONFIGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "roundup_power2_divisions:[1:4,2:1,4:2,>:8]",
    "large_segment_size_mb:32",
]
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(MIB, 40 * MIB),
    st.sampled_from([MIB, MIB + 1, 9 * MIB, 10 * MIB, 11 * MIB, 12 * MIB, 19 * MIB, 20 * MIB - 512, 24 * MIB]),
)
PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("malloc"), SIZES, st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 1 << 20), st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 1 << 20), st.just(0)),
        st.tuples(st.just("record_stream"), st.integers(0, 1 << 20), st.integers(0, 1)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Measured(Recorder):
    """Keeps the size of each block as it is handed out."""

    def __init__(self, config, capacity):
        super().__init__(config, capacity)
        self.sizes = {}
        malloc = self.allocator.malloc

        def measured(size, stream=0):
            address = malloc(size, stream)
            event = max(i for i, e in enumerate(self.events) if e[0] is Action.ALLOC)
            self.sizes[event] = self.allocator.block_size(address)
            return address

        self.allocator.malloc = measured


@given(st.sampled_from(CONFIGS), PROGRAMS, st.integers(0, 30))
@settings(max_examples=300, deadline=None)
def test_every_block_has_the_size_that_was_handed_out(text, program, dropped):
    recorder = Measured(parse(text), 256 * MIB).run(program)
    first = min(dropped, len(recorder.events))
    device = recorder.snapshot(first)
    lives = lifetimes(device)
    found = block_bytes(device, lives, parse(text))
    assert found.contradictions == 0
    for row in np.flatnonzero(lives.birth >= 0).tolist():
        assert found.bytes[row] == recorder.sizes[int(lives.birth[row]) + first]
    older = np.flatnonzero(lives.birth < 0)
    # the block of an older row is the last one handed out at its address before the recording began
    true = {event[1]: recorder.sizes[i] for i, event in enumerate(recorder.events[:first]) if i in recorder.sizes}
    missed = [row for row in older.tolist() if found.bytes[row] != true[int(lives.address[row])]]
    assert len(missed) <= found.uncertain
    for row in missed:
        assert 0 < true[int(lives.address[row])] - found.bytes[row] <= MIB or "max_split" in text


@given(st.sampled_from(CONFIGS), PROGRAMS)
@settings(max_examples=150, deadline=None)
def test_the_peak_of_a_whole_recording_is_that_of_memory_stats(text, program):
    recorder = Recorder(parse(text), 256 * MIB).run(program)
    device = recorder.snapshot()
    found = block_bytes(device, lifetimes(device), parse(text))
    assert found.peak_allocated == recorder.allocator.memory_stats()["allocated_bytes.all.peak"]
    assert found.uncertain == 0


@pytest.mark.parametrize(
    ("hole", "handed_out"), [(5 * MIB - 512, 5 * MIB - 512), (5 * MIB, 5 * MIB), (6 * MIB, 4 * MIB)]
)
def test_a_rest_of_exactly_1_mib_is_not_split(hole, handed_out):
    """`should_split` asks for more than 1 MiB; the next live block then starts just at the edge."""
    steps = [("malloc", hole, 0), ("malloc", 4 * MIB, 0), ("free", 0, 0), ("malloc", 4 * MIB, 0)]
    recorder = Recorder(parse(""), 256 * MIB).run(steps)
    device = recorder.snapshot()
    lives = lifetimes(device)
    found = block_bytes(device, lives, parse(""))
    assert found.contradictions == 0
    assert found.bytes[lives.birth.argmax()] == handed_out


def test_real_recordings_agree_with_the_index_and_the_replay(shared: Path):
    folder = shared / "data" / "snapshots"
    compared = 0
    for entry in csv.DictReader((folder / "INDEX.csv").open(newline="")):
        snapshot = reader.load(folder / entry["name"])
        device = snapshot.devices[0]
        if not len(device.trace) or not extent(device).consistent:
            continue
        lives = lifetimes(device)
        found = block_bytes(device, lives, from_snapshot_settings(snapshot.settings))
        other = replay(device, snapshot.settings, snapshot.stacks)
        recorded = lives.birth >= 0
        np.testing.assert_array_equal(found.bytes[recorded], other.block_bytes[lives.birth[recorded]])
        assert (found.contradictions, found.uncertain) == (0, len(other.uncertain_blocks)), entry["name"]
        assert (found.peak_allocated, found.peak_event) == (other.peak_allocated, other.peak_allocated_event)
        if entry["peak_block_bytes"]:
            compared += 1
            assert found.peak_allocated == int(entry["peak_block_bytes"])
    assert compared >= 15


def test_another_allocators_rounding_is_noticed():
    recorder = Recorder(parse(""), 256 * MIB).run([("malloc", 5 * MIB, 0), ("malloc", 700, 0)])
    device = recorder.snapshot()
    device.blocks.size[0] += 32  # Ascend rounds so
    assert block_bytes(device, lifetimes(device), parse("")).contradictions == 1


@pytest.mark.parametrize("text", CONFIGS)
def test_nothing_recorded_has_no_bytes(text):
    device = Recorder(parse(text), MIB).snapshot()
    found = block_bytes(device, lifetimes(device), parse(text))
    assert (len(found.bytes), found.peak_allocated, found.peak_event) == (0, 0, -1)
