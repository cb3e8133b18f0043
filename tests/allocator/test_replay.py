"""Recordings are replayed: real ones against the published expectation, and the allocator's own exactly."""

import csv

import numpy as np
import pytest
from allocator_recordings import Recorder, device_snapshot, programs
from hypothesis import given, settings
from hypothesis import strategies as st
from oomdoc.allocator.config import MIB, parse
from oomdoc.allocator.machine import OutOfMemory
from oomdoc.allocator.replay import heap_at, replay
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Action, BlockState, Frame, Stacks

CONFIGS = [
    "",
    "max_split_size_mb:24",
    "max_split_size_mb:24,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:[1:4,2:1,4:2,>:8]",
    "large_segment_size_mb:32",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.9",
]
TOTAL = 1 << 36


@settings(max_examples=300, deadline=None)
@given(text=st.sampled_from(CONFIGS), program=programs([0, 0, 1, 2]))
def test_the_allocators_own_recording_replays_exactly(text, program):
    """Complete from the start, every setting: each address, each segment event, the layout, the peaks."""
    config = parse(text)
    recorder = Recorder(config, 192 * MIB, total_bytes=192 * MIB).run(program)
    result = replay(recorder.snapshot(), config, total_bytes=192 * MIB)
    assert result.departure is None
    assert result.exact
    stats = recorder.allocator.memory_stats()
    assert result.peak_allocated == stats["allocated_bytes.all.peak"]
    assert result.peak_reserved == stats["reserved_bytes.all.peak"]
    assert int(result.block_bytes.sum()) == stats["allocated_bytes.all.allocated"]


@settings(max_examples=200, deadline=None)
@given(program=programs([0, 0, 1, 2]))
def test_an_expandable_recording_replays_exactly(program):
    """Address ranges of several streams come, go and are used again."""
    config = parse("expandable_segments:True")
    recorder = Recorder(config, 192 * MIB, total_bytes=TOTAL).run(program)
    result = replay(recorder.snapshot(), config)
    assert result.departure is None
    assert result.exact


@settings(max_examples=150, deadline=None)
@given(program=programs([0, 0, 1]), cut=st.integers(0, 1 << 20))
def test_a_recording_that_starts_late_replays_exactly_or_says_which_blocks_it_guessed(program, cut):
    recorder = Recorder(parse(""), 192 * MIB).run(program)
    first = cut % (len(recorder.events) + 1)
    result = replay(recorder.snapshot(first))
    assert result.exact or result.uncertain_blocks
    if not result.uncertain_blocks and first == 0:
        assert result.older_blocks == ()


def test_an_unsplit_rest_of_an_older_block_is_found_by_what_lands_behind_it():
    recorder = Recorder(parse(""), 1 << 30)
    allocator = recorder.allocator
    segment = allocator.malloc(40 * MIB)
    allocator.free(segment)
    blocks = [allocator.malloc(size * MIB) for size in (11, 12, 17)]
    allocator.free(blocks[0])
    kept = allocator.malloc(10 * MIB + MIB // 2)
    assert allocator.block_size(kept) == 11 * MIB
    allocator.free(blocks[1])
    first = len(recorder.events)
    allocator.malloc(2 * MIB)
    allocator.free(kept)
    result = replay(recorder.snapshot(first))
    assert result.exact
    assert result.uncertain_blocks == ()
    assert result.older_blocks[0].size == 11 * MIB


def test_a_retry_is_told_from_an_emptied_cache_by_the_stack():
    recorder = Recorder(parse(""), 64 * MIB)
    allocator = recorder.allocator
    allocator.free(allocator.malloc(40 * MIB))
    allocator.malloc(50 * MIB)
    assert recorder.events[4][0] is Action.SEGMENT_FREE
    device = recorder.snapshot()
    assert replay(device).retries == 1
    stack = device.trace.stack.copy()
    stack[4] = 0
    frames = (Frame("torch/cuda/memory.py", 1, "empty_cache"),)
    object.__setattr__(device.trace, "stack", stack)
    result = replay(device, None, Stacks(frames=frames, stacks=((0,),)))
    assert (result.exact, result.retries) == (True, 0)


def test_an_oom_event_and_the_heap_around_it():
    recorder = Recorder(parse(""), 64 * MIB)
    allocator = recorder.allocator
    kept = allocator.malloc(30 * MIB)
    allocator.free(allocator.malloc(20 * MIB))
    with pytest.raises(OutOfMemory):
        allocator.malloc(40 * MIB)
    device = recorder.snapshot()
    result = replay(device)
    assert (result.exact, result.retries) == (True, 1)
    assert heap_at(device, None, -1) == ()
    before = heap_at(device, None, 5)
    assert [segment.total_bytes for segment in before] == [30 * MIB, 20 * MIB]
    (after,) = heap_at(device, None, len(device.trace) - 1)
    assert (after.address, after.blocks[0].state) == (kept, BlockState.ACTIVE_ALLOCATED)


def test_free_requests_may_be_missing():
    """torch 2.13's skip_actions can leave them out."""
    recorder = Recorder(parse(""), 1 << 30)
    first = recorder.allocator.malloc(4 * MIB)
    recorder.allocator.malloc(4 * MIB)
    recorder.allocator.free(first)
    recorder.allocator.malloc(2 * MIB)
    events = [event for event in recorder.events if event[0] is not Action.FREE_REQUESTED]
    assert replay(device_snapshot(events, recorder.allocator.segments())).exact


def test_a_trace_that_does_not_belong_to_its_segments_departs_with_the_reason():
    recorder = Recorder(parse(""), 1 << 30)
    allocator = recorder.allocator
    allocator.free(allocator.malloc(4 * MIB))
    allocator.malloc(3 * MIB)
    events = [event for event in recorder.events if event[0] is not Action.FREE_COMPLETED]
    events = [event for event in events if event[0] is not Action.FREE_REQUESTED]
    result = replay(device_snapshot(events, allocator.segments()))
    assert not result.exact
    assert result.departure is not None
    assert result.departure.event == -1
    assert "trace and segments disagree" in result.departure.reason


def test_a_recording_under_other_settings_departs_where_they_first_matter():
    recorder = Recorder(parse("roundup_power2_divisions:4"), 1 << 32)
    recorder.allocator.malloc(1000)
    recorder.allocator.malloc(1200 * MIB)
    result = replay(recorder.snapshot(), parse(""))
    assert result.departure is not None
    assert result.departure.event == 2
    assert result.matched_segments == 1


def test_garbage_collection_is_followed_where_the_memory_fraction_is_not_known():
    """A snapshot shows the threshold, but neither the fraction nor the device's memory."""
    config = parse("garbage_collection_threshold:0.5,per_process_memory_fraction:0.9")
    recorder = Recorder(config, 1000 * MIB)
    allocator = recorder.allocator
    for size in (300, 400, 410):
        allocator.free(allocator.malloc(size * MIB))
    device = recorder.snapshot()
    assert Action.SEGMENT_FREE in device.trace.action
    assert replay(device, {"garbage_collection_threshold": 0.5}).exact
    assert replay(device, config, total_bytes=1000 * MIB).exact


def test_private_pools_are_replayed_from_the_pool_of_their_segment():
    recorder = Recorder(parse(""), 1 << 30)
    allocator = recorder.allocator
    allocator.begin_allocate_to_pool((0, 7))
    inside = allocator.malloc(30 * MIB)
    allocator.end_allocate_to_pool((0, 7))
    allocator.malloc(20 * MIB)
    allocator.free(inside)
    allocator.malloc(25 * MIB)
    assert replay(recorder.snapshot()).exact


def test_an_empty_trace_gives_the_state():
    recorder = Recorder(parse(""), 1 << 30)
    recorder.allocator.malloc(4 * MIB)
    result = replay(recorder.snapshot(len(recorder.events)))
    assert (result.alloc_events, result.exact, result.peak_allocated) == (0, True, 4 * MIB)
    assert (result.peak_allocated_event, result.peak_reserved) == (-1, 20 * MIB)
    assert [block.size for block in result.older_blocks] == [4 * MIB]


def index_rows(shared):
    with (shared / "data" / "snapshots" / "INDEX.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["replay_exact"]]


def test_every_real_recording_replays_as_published(shared):
    """Each address and segment event of the rows marked exact, and the peak in block bytes."""
    rows = index_rows(shared)
    assert len(rows) > 10
    for row in rows:
        snapshot = reader.load(shared / "data" / "snapshots" / row["name"])
        (device,) = [device for device in snapshot.devices if device.device == int(row["device"])]
        result = replay(device, snapshot.settings, snapshot.stacks)
        matched = f"{result.matched_addresses}/{result.alloc_events}"
        assert matched == row["replay_allocs_matched"], row["name"]
        if row["replay_exact"] == "yes":
            assert result.departure is None, row["name"]
            assert result.exact, row["name"]
            assert result.peak_allocated == int(row["peak_block_bytes"])
            assert result.peak_reserved == int(row["reserved_peak_bytes"])
            assert np.count_nonzero(result.block_bytes) == result.alloc_events
        else:
            assert result.departure is not None
            assert result.departure.reason
