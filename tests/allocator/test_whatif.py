"""What other settings or another capacity would have done, against really doing it."""

import pytest
from allocator_recordings import Recorder, programs
from hypothesis import given, settings
from hypothesis import strategies as st
from oomdoc.allocator.config import MIB, parse
from oomdoc.allocator.machine import Allocator, OutOfMemory
from oomdoc.allocator.replay import replay
from oomdoc.allocator.whatif import advise, candidates, recorded_capacity, what_if


def fragmenting(allocator):
    """Four segments of 60 MiB, each with 35 MiB live and 25 MiB free: no place for 90 MiB."""
    for address in [allocator.malloc(60 * MIB) for _ in range(4)]:
        allocator.free(address)
    for _ in range(4):
        allocator.malloc(35 * MIB)
    return allocator.malloc(90 * MIB)


def fragmented_recording():
    recorder = Recorder(parse(""), 300 * MIB)
    with pytest.raises(OutOfMemory):
        fragmenting(recorder.allocator)
    return recorder


def with_oom_free(device, free):
    object.__setattr__(device.trace, "oom_device_free", {len(device.trace) - 1: free})
    return device


def test_the_setting_that_is_named_fits_when_it_is_really_used():
    """The proof: out of memory by default; every row of the table then does what it says, with the peak it says."""
    recorder = fragmented_recording()
    device = with_oom_free(recorder.snapshot(), recorder.allocator.heap.driver.free_bytes())
    replayed = replay(device)
    capacity = recorded_capacity(device, replayed)
    assert capacity == 300 * MIB
    table = advise(device, None, capacity, replayed)
    assert not table.recorded.fits
    assert table.recorded.failure is not None
    assert table.recorded.failure.requested == 90 * MIB
    assert table.rows[0].fits
    assert "expandable_segments:True" in [row.config.as_text() for row in table.rows if row.fits]
    for row in table.rows:
        allocator = Allocator(parse(row.config.as_text()), capacity)
        if row.fits:
            fragmenting(allocator)
        else:
            with pytest.raises(OutOfMemory):
                fragmenting(allocator)
        assert allocator.memory_stats()["reserved_bytes.all.peak"] == row.peak_reserved


def test_the_failure_says_how_the_cache_stands_to_the_request():
    recorder = fragmented_recording()
    result = what_if(recorder.snapshot(), None, capacity=300 * MIB)
    assert result.failure is not None
    assert result.failure.event == len(recorder.events) - 1
    assert (result.failure.allocated, result.failure.reserved) == (140 * MIB, 240 * MIB)
    found = result.failure.fit
    assert (found.request, found.reusable, found.releasable) == (90 * MIB, 0, 0)
    assert (found.fragmented, found.largest_usable_block) == (100 * MIB, 25 * MIB)
    assert result.retries == 1


@settings(max_examples=150, deadline=None)
@given(
    text=st.sampled_from(["expandable_segments:True", "max_split_size_mb:24", "roundup_power2_divisions:4", ""]),
    program=programs([0, 0, 1]),
    capacity=st.integers(40, 400),
)
def test_what_if_is_what_would_have_been(text, program, capacity):
    """Record without a limit and by default; what-if then equals the same program really run with setting and limit."""
    program = [step for step in program if step[0] in ("malloc", "free")]
    recorder = Recorder(parse(""), 1 << 40).run(program)
    other = Allocator(parse(text), capacity * MIB)
    held, failed = [], False
    for step, value, stream in program:
        if step == "free":
            if held:
                other.free(held.pop(value % len(held)))
            continue
        try:
            held.append(other.malloc(value, stream))
        except OutOfMemory as error:
            failed = (error.requested, error.device_free, error.allocated, error.reserved)
            break
    result = what_if(recorder.snapshot(), None, parse(text), capacity * MIB)
    assert result.fits == (not failed)
    if failed:
        found = result.failure
        assert (found.requested, found.device_free, found.allocated, found.reserved) == failed
    stats = other.memory_stats()
    assert result.peak_reserved == stats["reserved_bytes.all.peak"]
    assert result.peak_allocated == stats["allocated_bytes.all.peak"]
    assert result.retries == stats["num_alloc_retries"]
    assert result.kept is None


@settings(max_examples=60, deadline=None)
@given(program=programs([0, 0, 1]), cut=st.integers(0, 1 << 20))
def test_the_recordings_own_settings_give_its_own_peaks(program, cut):
    """Where nothing was given back to make room: without a limit there is no retry, and more stays reserved."""
    recorder = Recorder(parse(""), 1 << 40).run(program)
    device = recorder.snapshot(cut % (len(recorder.events) + 1))
    known = replay(device)
    result = what_if(device, None, replayed=known)
    if known.departure is None and known.retries == 0:
        assert result.peak_allocated == known.peak_allocated
        assert result.peak_reserved == known.peak_reserved
        assert (result.fits, result.assumptions) == (True, ())


def test_older_blocks_are_placed_anew_under_other_settings_and_that_is_said():
    recorder = Recorder(parse(""), 1 << 30)
    fragmenting(recorder.allocator)
    first = len(recorder.events)
    recorder.allocator.malloc(30 * MIB)
    result = what_if(recorder.snapshot(first), None, parse("expandable_segments:True"))
    assert "5 blocks older than the trace" in result.assumptions[0]
    assert result.peak_reserved == 260 * MIB
    assert result.kept is not None
    assert result.kept.peak_reserved == 4 * 60 * MIB + 90 * MIB + 40 * MIB


def test_a_capacity_below_what_was_there_before_fails_before_the_first_event():
    recorder = Recorder(parse(""), 1 << 30)
    recorder.allocator.malloc(100 * MIB)
    recorder.allocator.free(recorder.allocator.malloc(50 * MIB))
    device = recorder.snapshot(len(recorder.events))
    assert what_if(device, None, capacity=120 * MIB).fits
    result = what_if(device, None, capacity=90 * MIB)
    assert result.failure is not None
    assert (result.failure.event, result.failure.reserved) == (-1, 100 * MIB)


def test_the_cache_is_emptied_where_the_program_did():
    recorder = Recorder(parse(""), 1 << 30)
    allocator = recorder.allocator
    allocator.free(allocator.malloc(100 * MIB))
    allocator.empty_cache()
    allocator.malloc(60 * MIB)
    allocator.malloc(50 * MIB)
    allocator.free(allocator.malloc(1))
    assert what_if(recorder.snapshot(), None, parse("roundup_power2_divisions:1")).peak_reserved >= 110 * MIB


def test_candidates_never_repeat_or_exclude_each_other():
    for text in ("", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8"):
        own = parse(text)
        tried = list(candidates(own))
        assert own not in tried
        assert len(set(tried)) == len(tried)
        assert not any(config.expandable_segments and config.max_split_size for config in tried)
        if own.expandable_segments:
            assert all(config.expandable_segments for config in tried)
        assert [parse(config.as_text()) for config in tried] == tried


def test_of_settings_that_do_the_same_one_is_named():
    """Any max_split_size from 64 to 256 MiB keeps the 300 MiB block whole; the largest of them restricts least."""
    recorder = Recorder(parse(""), 1 << 40)
    allocator = recorder.allocator
    allocator.free(allocator.malloc(300 * MIB))
    allocator.malloc(30 * MIB)
    allocator.malloc(300 * MIB)
    rows = [row.config.as_text() for row in advise(recorder.snapshot(), None).rows]
    assert [row for row in rows if row.startswith("max_split")] == ["max_split_size_mb:256"]


def test_no_advice_without_requests_or_where_the_replay_departs():
    recorder = Recorder(parse(""), 1 << 30)
    recorder.allocator.malloc(4 * MIB)
    table = advise(recorder.snapshot(len(recorder.events)), None)
    assert (table.rows, table.reason) == ((), "the recording holds no requests")
    table = advise(recorder.snapshot(), parse("large_segment_size_mb:40"))
    assert table.rows == ()
    assert table.reason is not None
    assert "departs" in table.reason


def test_the_text_form_of_settings_reads_back():
    for text in (
        "",
        "expandable_segments:True,large_segment_size_mb:40",
        "max_split_size_mb:64,max_non_split_rounding_mb:40",
        "garbage_collection_threshold:0.6,per_process_memory_fraction:0.5",
        "roundup_power2_divisions:[1:2,2:4,>:8]",
    ):
        assert parse(parse(text).as_text()) == parse(text)
