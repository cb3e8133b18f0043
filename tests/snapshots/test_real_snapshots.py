"""Every shared recording gives the numbers of INDEX.csv exactly, and survives being written and read again."""

import csv
from pathlib import Path

import numpy as np
import pytest
from oomdoc.snapshots import check, reader, timeline, writer
from oomdoc.snapshots.model import Snapshot

INCONSISTENT = "trimmed-inconsistent.pickle"  # cut by hand: INDEX.csv gives it no peak
COLUMNS = {
    "start": "start_bytes",
    "peak": "true_peak_bytes",
    "peak_event": "peak_event_index",
    "final": "final_live_bytes",
    "reserved_start": "reserved_start_bytes",
    "reserved_peak": "reserved_peak_bytes",
    "reserved_final": "reserved_end_bytes",
    "events": "events",
}


@pytest.fixture(scope="module")
def index(shared: Path) -> list[dict[str, str]]:
    with (shared / "data" / "snapshots" / "INDEX.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def snapshots(shared: Path, index: list[dict[str, str]]) -> dict[str, Snapshot]:
    return {name: reader.load(shared / "data" / "snapshots" / name) for name in {row["name"] for row in index}}


def test_the_extent_of_every_device_is_that_of_the_index(
    index: list[dict[str, str]], snapshots: dict[str, Snapshot]
) -> None:
    differing, compared = [], 0
    for row in index:
        device = next(d for d in snapshots[row["name"]].devices if d.device == int(row["device"]))
        extent = timeline.extent(device)
        for ours, theirs in COLUMNS.items():
            if row[theirs] != "":
                compared += 1
                if getattr(extent, ours) != int(row[theirs]):
                    differing.append((row["name"], ours, getattr(extent, ours), row[theirs]))
        assert extent.complete_from_start == (row["complete_from_start"] == "yes"), row["name"]
    assert differing == []
    assert compared > 150


def test_every_device_with_segments_or_events_is_in_the_index(
    index: list[dict[str, str]], snapshots: dict[str, Snapshot]
) -> None:
    read = {(name, device.device) for name, snapshot in snapshots.items() for device in snapshot.devices}
    assert read == {(row["name"], int(row["device"])) for row in index}


def test_only_the_file_that_was_cut_by_hand_is_reported(snapshots: dict[str, Snapshot]) -> None:
    assert {name for name, snapshot in snapshots.items() if snapshot.problems} == {INCONSISTENT}
    assert "the trace and the segments disagree" in snapshots[INCONSISTENT].problems[0]
    assert not timeline.extent(snapshots[INCONSISTENT].devices[0]).consistent


def test_every_other_file_holds_together(snapshots: dict[str, Snapshot]) -> None:
    broken = {name: check.self_check(snapshot) for name, snapshot in snapshots.items()}
    assert {name for name, problems in broken.items() if problems} == {INCONSISTENT}


def test_the_live_set_adds_up_at_every_moment_looked_at(snapshots: dict[str, Snapshot]) -> None:
    for name, snapshot in snapshots.items():
        if name == INCONSISTENT:
            continue
        for device in snapshot.devices:
            rows, live = timeline.lifetimes(device), timeline.live_bytes(device)
            events = {-1, timeline.extent(device).peak_event, len(device.trace) // 2 - 1, len(device.trace) - 1}
            for event in events:
                assert rows.requested[timeline.live_at(rows, event)].sum() == live[event + 1], (name, event)


def test_what_the_writer_makes_reads_back_the_same(snapshots: dict[str, Snapshot]) -> None:
    for name, snapshot in snapshots.items():
        again = reader.from_dict(writer.to_dict(snapshot))
        assert_same(again, snapshot, name)


def assert_same(one: Snapshot, other: Snapshot, name: str) -> None:
    assert (one.settings, one.annotations, one.problems) == (other.settings, other.annotations, other.problems), name
    assert len(one.devices) == len(other.devices), name
    for a, b in zip(one.devices, other.devices, strict=True):
        assert (a.device, dict(a.trace.oom_device_free)) == (b.device, dict(b.trace.oom_device_free)), name
        for part in ("trace", "segments", "blocks"):
            for column in type(getattr(a, part)).__slots__:
                ours, theirs = getattr(getattr(a, part), column), getattr(getattr(b, part), column)
                if column == "oom_device_free":
                    continue
                if column == "stack":
                    # numbered in the order met, so by content
                    assert [one.stacks.of(i) for i in ours] == [other.stacks.of(i) for i in theirs], (name, part)
                elif column == "pool":
                    assert [a.pools[i] for i in ours] == [b.pools[i] for i in theirs], (name, part)
                else:
                    np.testing.assert_array_equal(ours, theirs, err_msg=f"{name} {part}.{column}")
