"""The heap read off a recording, at any event, is the one that the allocator had."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from allocator_recordings import Recorder, programs
from hypothesis import given, settings
from hypothesis import strategies as st
from oomdoc.allocator.config import MIB, from_snapshot_settings, parse
from oomdoc.allocator.heap import BlockView
from oomdoc.allocator.replay import heap_at
from oomdoc.allocator.rewind import heap_with, pool_at
from oomdoc.allocator.tiling import block_bytes
from oomdoc.snapshots import reader
from oomdoc.snapshots.model import Action, BlockState
from oomdoc.snapshots.timeline import extent, lifetimes, live_at
from test_contradictions import changed, changes

TEXTS = ["", "expandable_segments:True", "max_split_size_mb:24", "large_segment_size_mb:32"]


def read_off(device, config, event):
    lives = lifetimes(device)
    sizes = block_bytes(device, lives, config).bytes
    live = [
        BlockView(int(lives.address[row]), int(sizes[row]), int(lives.requested[row]), BlockState.ACTIVE_ALLOCATED)
        for row in live_at(lives, event)
    ]
    return heap_with(device, config, event, live)


def layout(segments):
    """Segments with the place of each block, free or not."""
    return [
        (view, tuple((block.address, block.size, block.state is BlockState.INACTIVE) for block in blocks))
        for view, blocks in ((replace(each, blocks=()), each.blocks) for each in segments)
    ]


@settings(max_examples=150, deadline=None)
@given(text=st.sampled_from(TEXTS), program=programs([0, 0, 1]), which=st.integers(0, 1 << 20))
def test_it_is_the_heap_of_the_allocator(text, program, which):
    config = parse(text)
    device = Recorder(config, 192 * MIB, total_bytes=1 << 36).run(program).snapshot()
    allocs = np.flatnonzero(device.trace.action == Action.ALLOC)
    if len(allocs):
        event = int(allocs[which % len(allocs)])
        assert layout(read_off(device, config, event)) == layout(heap_at(device, config, event))


def test_real_recordings(shared: Path):
    """At the middle and at the peak of every consistent recording: as its replay has it."""
    folder, compared = shared / "data" / "snapshots", 0
    for entry in csv.DictReader((folder / "INDEX.csv").open(newline="")):
        snapshot = reader.load(folder / entry["name"])
        device = snapshot.devices[0]
        config = from_snapshot_settings(snapshot.settings)
        whole = extent(device)
        allocs = np.flatnonzero(device.trace.action == Action.ALLOC)
        if not len(allocs) or not whole.consistent:
            continue
        for event in {int(allocs[len(allocs) // 2]), whole.peak_event} & set(allocs.tolist()):
            compared += 1
            seen, expected = read_off(device, config, event), heap_at(device, config, event)
            assert layout(seen) == layout(expected), entry["name"]
    assert compared >= 20


@settings(max_examples=150, deadline=None)
@given(program=programs([0, 0, 1]), damage=changes, which=st.integers(0, 1 << 20), text=st.sampled_from(TEXTS[:2]))
def test_a_damaged_recording_has_blocks_that_tile_its_segments(text, program, damage, which):
    device = Recorder(parse(text), 192 * MIB, total_bytes=1 << 36).run(program).snapshot()
    for what in damage:
        device = changed(device, what)
    event = which % (len(device.trace) + 1) - 1
    for view in heap_with(device, parse(text), event, _blocks(device)):
        assert sum(block.size for block in view.blocks) == view.total_bytes
    if event >= 0:
        pool_at(device, event)


def _blocks(device):
    """Every block of the dump and every request of the trace, whether they exclude each other or not."""
    held = zip(device.blocks.address.tolist(), device.blocks.size.tolist(), strict=True)
    asked = zip(device.trace.address.tolist(), device.trace.size.tolist(), strict=True)
    return [BlockView(address, size, size, BlockState.ACTIVE_ALLOCATED) for address, size in (*held, *asked)]


@pytest.mark.parametrize("text", TEXTS)
def test_no_segments_have_no_heap(text):
    assert heap_with(Recorder(parse(text), MIB).snapshot(), parse(text), -1, []) == ()
