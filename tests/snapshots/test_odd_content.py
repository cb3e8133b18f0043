"""Files that contradict themselves are read as far as they are sound; what was left out is named."""

from typing import Any

import numpy as np
import pytest
from oomdoc.snapshots import check, reader, timeline
from oomdoc.snapshots.model import Action, BlockState, Frame

from .generated import Job, snapshot

GOOD = {"action": "alloc", "addr": 4096, "size": 100, "stream": 0, "time_us": 5, "frames": []}


def read(*entries: Any, **top: Any) -> Any:
    return reader.from_dict({"segments": [], "device_traces": [list(entries)], **top})


UNUSABLE = {
    "no action": {"addr": 1, "size": 1},
    "no size": {"action": "alloc", "addr": 1},
    "size none": {**GOOD, "size": None},
    "size float": {**GOOD, "size": 100.5},
    "size text": {**GOOD, "size": "100"},
    "size bool": {**GOOD, "size": True},
    "negative": {**GOOD, "size": -1},
    "too large": {**GOOD, "size": 1 << 48},
    "far too large": {**GOOD, "size": 1 << 200},
    "action is a list": {**GOOD, "action": ["alloc"]},
    "none": None,
    "text": "alloc",
    "number": 7,
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_an_unusable_entry_is_left_out_and_the_others_are_read(what: str) -> None:
    snapshot = read(GOOD, UNUSABLE[what], {**GOOD, "addr": 8192, "size": 7})
    assert snapshot.devices[0].trace.size.tolist() == [100, 7]
    assert "device 0: 1 of 3 trace entries have no usable action or size" in snapshot.problems[0]


@pytest.mark.parametrize("key", ["time_us", "stream", "addr", "frames", "pool_id"])
@pytest.mark.parametrize("value", [None, "x", [], {}, [[1]], 1 << 80, -(1 << 80)])
def test_an_odd_optional_value_counts_as_not_recorded(key: str, value: object) -> None:
    trace = read(GOOD, {**GOOD, "addr": 8192, key: value}).devices[0].trace
    assert trace.size.tolist() == [100, 100]
    assert trace.stack.tolist() == [-1, -1]
    assert trace.pool.tolist() == [-1, -1]
    if key == "time_us":
        assert trace.time_us.tolist() == [5, -1]


def test_unknown_actions_are_kept_apart_and_change_nothing() -> None:
    device = read(GOOD, {"action": "annotate", "note": 1}, {**GOOD, "action": "workspace_snapshot"}).devices[0]
    assert device.trace.action.tolist() == [Action.ALLOC, Action.OTHER, Action.OTHER]
    assert np.diff(timeline.live_bytes(device)).tolist() == [100, 0, 0]


def test_the_old_free_is_the_completed_one() -> None:
    device = read(GOOD, {**GOOD, "action": "free"}).devices[0]
    assert device.trace.action.tolist() == [Action.ALLOC, Action.FREE_COMPLETED]
    assert timeline.extent(device).final == 0
    rows = timeline.lifetimes(device)
    assert (rows.birth.tolist(), rows.free_requested.tolist(), rows.death.tolist()) == ([0], [1], [1])


def test_addresses_and_streams_are_unsigned_64_bit() -> None:
    trace = read({**GOOD, "addr": 2**64 - 512, "stream": 2**63}, {**GOOD, "addr": -512, "stream": -1}).devices[0].trace
    assert trace.address.tolist() == [2**64 - 512] * 2
    assert trace.stream.tolist() == [2**63, 2**64 - 1]


def test_the_profilers_frames_are_taken_apart() -> None:
    names = ["torch/nn/modules/linear.py(130): forward", "nn.Module: Linear_0", "<built-in method randn>"]
    frames = [{"filename": "none", "line": 0, "name": name} for name in names]
    snapshot = read({**GOOD, "frames": frames})
    assert snapshot.stacks.of(0) == (
        Frame("torch/nn/modules/linear.py", 130, "forward"),
        Frame("none", 0, "nn.Module: Linear_0"),
        Frame("none", 0, "<built-in method randn>"),
    )


def test_an_oom_has_what_the_driver_had_free_and_no_address() -> None:
    oom = {"action": "oom", "size": 1024, "stream": 0, "device_free": 77, "time_us": 6}
    device = read(GOOD, oom, {**oom, "device_free": "all"}).devices[0]
    assert dict(device.trace.oom_device_free) == {1: 77}
    assert device.trace.address.tolist() == [4096, 0, 0]


def test_events_without_an_address_still_count_and_are_named() -> None:
    snapshot = read({"action": "alloc", "size": 10}, {"action": "free_completed", "size": 4})
    assert np.diff(timeline.live_bytes(snapshot.devices[0])).tolist() == [10, -4]
    assert "2 trace entries have no address" in snapshot.problems[0]


SEGMENT = {
    "device": 0, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "large", "blocks": [
        {"size": 1024, "requested_size": 1000, "state": "active_allocated"},
        {"size": 1024, "requested_size": 900, "state": "inactive"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"device": "a"}, {"device": 5000}, {"device": -1}, {"address": None}, {"total_size": -4}, {"blocks": 7}],
    ids=str,
)
def test_an_unusable_segment_is_left_out_and_named(change: dict[str, object]) -> None:
    snapshot = reader.from_dict([SEGMENT, {**SEGMENT, "address": 8192, **change}, 5])
    assert len(snapshot.devices[0].segments) == 1
    assert "2 of 3 segments" in snapshot.problems[0]


def test_unusable_blocks_and_unknown_states_are_named() -> None:
    blocks = [{"size": 512, "state": "parked"}, {"size": None}, 3, {"size": 1536, "state": "inactive"}]
    snapshot = reader.from_dict([{**SEGMENT, "blocks": blocks}])
    assert snapshot.devices[0].blocks.size.tolist() == [512, 1536]
    assert snapshot.devices[0].blocks.state.tolist() == [BlockState.ACTIVE_ALLOCATED, BlockState.INACTIVE]
    assert snapshot.problems == (
        "device 0: 1 blocks are in a state that oomdoc does not know and were taken as live",
        "device 0: 2 blocks have no usable size",
    )


def test_stale_requests_of_inactive_blocks_are_not_read() -> None:
    blocks = reader.from_dict([SEGMENT]).devices[0].blocks
    assert blocks.requested.tolist() == [1000, 0]


def test_a_trace_that_frees_more_than_there_was_has_no_peak() -> None:
    snapshot = reader.from_dict({"segments": [SEGMENT], "device_traces": [[{**GOOD, "size": 5000}]]})
    extent = timeline.extent(snapshot.devices[0])
    assert (extent.consistent, extent.final, extent.reserved_final) == (False, 1000, 2048)
    assert "before the first event come out as -4000" in snapshot.problems[0]
    assert check.self_check(snapshot)


@pytest.mark.parametrize(
    "empty", [{"segments": [], "device_traces": []}, {"segments": []}, [], {"device_traces": [[], []]}]
)
def test_a_file_without_anything_is_a_snapshot_of_no_device(empty: object) -> None:
    snapshot = reader.from_dict(empty)
    assert (snapshot.devices, snapshot.problems) == ((), ())


BREAKS = {
    "overlap": lambda raw: raw["segments"][1].update(address=raw["segments"][0]["address"] + 512),
    "sum": lambda raw: raw["segments"][0].update(total_size=1 << 20),
    "gap": lambda raw: raw["segments"][0]["blocks"][1].update(address=1),
    "request": lambda raw: raw["segments"][0]["blocks"][0].update(size=1, requested_size=2),
    "double free": lambda raw: raw["device_traces"][0].extend([freed(raw), freed(raw)]),
    "lost block": lambda raw: raw["device_traces"][0].append({**GOOD, "addr": 3, "size": 0}),
    "resized": lambda raw: resize(raw),
}


def freed(raw: dict[str, Any]) -> dict[str, Any]:
    return {**GOOD, "action": "free_completed", "addr": raw["device_traces"][0][1]["addr"]}


def resize(raw: dict[str, Any]) -> None:
    alive = {b["address"]: b for s in raw["segments"] for b in s["blocks"] if b["state"] != "inactive"}
    latest = [e for e in raw["device_traces"][0] if e["action"] == "alloc" and e["addr"] in alive][-1]
    latest["size"] -= 1


@pytest.mark.parametrize("broken", BREAKS)
def test_the_self_check_finds_each_kind_of_contradiction(broken: str) -> None:
    raw = snapshot([Job(1).run(60)])
    assert len(raw["segments"]) > 1
    assert check.self_check(reader.from_dict(raw)) == ()
    BREAKS[broken](raw)
    assert check.self_check(reader.from_dict(raw)) != ()
