"""Recordings that contradict themselves: the replay says so, or answers; it never fails in another way."""

from dataclasses import replace

import numpy as np
import pytest
from allocator_recordings import Recorder, programs
from hypothesis import given, settings
from hypothesis import strategies as st
from oomdoc.allocator.config import MIB, parse
from oomdoc.allocator.replay import heap_at, replay
from oomdoc.allocator.whatif import what_if
from oomdoc.errors import UnreadableInputError
from oomdoc.snapshots.model import Action

COLUMNS = {
    "trace": ("action", "address", "size", "stream", "pool"),
    "segments": ("address", "total_bytes", "stream", "large", "expandable"),
    "blocks": ("address", "size", "requested", "state"),
}
ODD = [0, 1, 511, 512, 2 << 20, 1 << 40, 1 << 62, (1 << 63) - 1]
TEXTS = ["", "expandable_segments:True", "max_split_size_mb:24", "garbage_collection_threshold:0.5"]
changes = st.lists(
    st.tuples(
        st.sampled_from([(part, name) for part, names in COLUMNS.items() for name in names]),
        st.integers(0, 1 << 20),
        st.one_of(st.sampled_from(ODD), st.integers(0, 1 << 20).map(lambda row: -1 - row)),
    ),
    min_size=1,
    max_size=4,
)


def changed(device, what):
    """One value becomes an odd one, or, for negative `value`, that of another row; actions and states stay in range."""
    (part, name), row, value = what
    table = getattr(device, part)
    if not len(table):
        return device
    column = getattr(table, name).copy()
    new = column[(-1 - value) % len(column)] if value < 0 else value
    if name in ("action", "state"):
        new = int(new) % (10 if name == "action" else 3)
    elif name == "pool":
        new = int(new) % 4 - 1
    column[row % len(column)] = new
    return replace(device, **{part: replace(table, **{name: column})})


@settings(max_examples=250, deadline=None)
@given(text=st.sampled_from(TEXTS), program=programs([0, 0, 1]), damage=changes, event=st.integers(0, 1 << 20))
def test_a_damaged_recording_is_answered_or_refused(text, program, damage, event):
    device = Recorder(parse(text), 192 * MIB, total_bytes=1 << 36).run(program).snapshot()
    for what in damage:
        device = changed(device, what)
    result = replay(device, parse(text))
    assert result.exact or result.departure is not None
    try:
        heap_at(device, parse(text), event % (len(device.trace) + 1) - 1)
        what_if(device, parse(text), parse("expandable_segments:True"), 100 * MIB)
    except UnreadableInputError as error:
        assert "contradicts itself" in str(error)  # noqa: PT017  (an answer is as good)


def test_a_state_that_cannot_be_is_refused_with_the_reason():
    """The trace frees the same block twice, so nothing after it can be told."""
    recorder = Recorder(parse(""), 1 << 30)
    first, second = recorder.allocator.malloc(30 * MIB), recorder.allocator.malloc(40 * MIB)
    recorder.allocator.free(first)
    device = recorder.snapshot()
    address = device.trace.address.copy()
    freed = np.flatnonzero(np.isin(device.trace.action, [Action.FREE_REQUESTED, Action.FREE_COMPLETED]))
    address[freed] = second
    device = replace(device, trace=replace(device.trace, address=address))
    result = replay(device)
    assert result.departure is not None
    assert "live at the end" in result.departure.reason


def test_requests_of_no_size_depart():
    recorder = Recorder(parse(""), 1 << 30)
    recorder.allocator.malloc(4 * MIB)
    device = recorder.snapshot()
    size = device.trace.size.copy()
    size[1] = 0
    device = replace(device, trace=replace(device.trace, size=size))
    assert replay(device).alloc_events == 0
    with pytest.raises(UnreadableInputError, match="contradicts itself"):
        what_if(device, None)
