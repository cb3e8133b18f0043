"""On thousands of generated jobs: the numbers are those of a plain walk, whatever form the file has."""

import base64
import bz2
import copy
import gzip
import io
import json
import lzma
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oomdoc.snapshots import check, reader, timeline, writer
from oomdoc.snapshots.model import Snapshot
from oomdoc.snapshots.unpickler import load_scanned

from .generated import Job, Raw, snapshot

JOBS = st.builds(
    lambda seed, steps, devices: [Job(seed + d, device=2 * d).run(steps) for d in range(devices)],
    st.integers(0, 10**9),
    st.integers(0, 60),
    st.integers(1, 2),
)
KEEP = st.one_of(st.none(), st.integers(0, 40))


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("snapshot/data.pkl", data)
        archive.writestr("snapshot/version", "3\n")
    return file.getvalue()


PACKED = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zip": zipped}
CONTAINERS = ("dict", "pickle0", "pickle2", "pickle4", "pickle5", *PACKED, "json", "page")
SOME = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def walked(raw: Raw, device: int) -> tuple[list[int], list[int]]:
    """(live, reserved) bytes before the first event and after each, by walking backwards from the dump."""
    segments = [s for s in raw["segments"] if s["device"] == device]
    live = [sum(b["requested_size"] for s in segments for b in s["blocks"] if b["state"] != "inactive")]
    reserved = [sum(s["total_size"] for s in segments)]
    for event in reversed(raw["device_traces"][device]):
        sign = {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
        live.insert(0, live[0] - sign * event["size"])
        sign = {"segment_alloc": 1}.get(event["action"], 0)
        reserved.insert(0, reserved[0] - sign * event["size"])
    return live, reserved


def live_blocks(raw: Raw, device: int) -> list[dict[int, int]]:
    """{address: requested bytes} before the first event and after each, backwards from the dump."""
    segments = [s for s in raw["segments"] if s["device"] == device]
    states = [{b["address"]: b["requested_size"] for s in segments for b in s["blocks"] if b["state"] != "inactive"}]
    for event in reversed(raw["device_traces"][device]):
        before = dict(states[0])
        if event["action"] == "alloc":
            del before[event["addr"]]
        elif event["action"] == "free_completed":
            before[event["addr"]] = event["size"]
        states.insert(0, before)
    return states


@SOME
@given(JOBS, KEEP)
def test_bytes_at_every_event_are_those_of_a_walk(jobs: list[Job], keep: int | None) -> None:
    raw = snapshot(jobs, keep)
    read = reader.from_dict(raw)
    for device in read.devices:
        live, reserved = walked(raw, device.device)
        assert timeline.live_bytes(device).tolist() == live
        assert timeline.reserved_bytes(device).tolist() == reserved
        extent = timeline.extent(device)
        assert (extent.start, extent.peak, extent.final) == (live[0], max(live), live[-1])
        assert extent.peak_event == live.index(max(live)) - 1
        assert (extent.reserved_start, extent.reserved_peak) == (reserved[0], max(reserved))
        if keep is None and len(device.trace):
            assert extent.complete_from_start


@SOME
@given(JOBS, KEEP)
def test_the_live_set_at_every_event_is_that_of_a_walk(jobs: list[Job], keep: int | None) -> None:
    raw = snapshot(jobs, keep)
    for device in reader.from_dict(raw).devices:
        rows = timeline.lifetimes(device)
        for event, expected in enumerate(live_blocks(raw, device.device), start=-1):
            at = timeline.live_at(rows, event)
            found = dict(zip(rows.address[at].tolist(), rows.requested[at].tolist(), strict=True))
            assert found == expected
            assert len(found) == len(at)


@SOME
@given(JOBS, KEEP)
def test_what_pytorch_writes_holds_together(jobs: list[Job], keep: int | None) -> None:
    read = reader.from_dict(snapshot(jobs, keep))
    assert read.problems == ()
    assert check.self_check(read) == ()


@SOME
@given(jobs=JOBS, keep=KEEP, container=st.sampled_from(CONTAINERS))
def test_every_container_reads_the_same(jobs: list[Job], keep: int | None, container: str, tmp_path: Path) -> None:
    raw = snapshot(jobs, keep)
    expected = reader.from_dict(raw)
    path = tmp_path / "file"
    path.write_bytes(packed(raw, container))
    found = reader.load(path)
    assert found.problems == ()
    assert comparable(found) == comparable(expected)


def packed(raw: Raw, container: str) -> bytes:
    if container == "json":
        return json.dumps(raw).encode()
    data = pickle.dumps(raw, int(container[-1]) if container[-1].isdigit() else 4)
    if container in PACKED:
        return PACKED[container](data)
    if container == "page":
        padded = base64.b64encode(data + bytes(3 - len(data) % 3)).decode()
        return f'<html>[{{"name": "snapshot.pickle", "base64": "{padded}"}}]</html>'.encode()
    return data


def comparable(read: Snapshot) -> Any:
    """The snapshot without the numbering of stacks and pools, which depends on the order met."""
    return load_scanned(pickle.dumps(writer.to_dict(read), protocol=4))


@SOME
@given(JOBS, KEEP)
def test_writing_and_reading_again_changes_nothing(jobs: list[Job], keep: int | None) -> None:
    read = reader.from_dict(snapshot(jobs, keep))
    written = writer.to_dict(read)
    assert writer.to_dict(reader.from_dict(written)) == written


@SOME
@given(JOBS, KEEP)
def test_reading_leaves_the_dict_as_it_was(jobs: list[Job], keep: int | None) -> None:
    raw = snapshot(jobs, keep)
    before = copy.deepcopy(raw)
    reader.from_dict(raw)
    assert raw == before


OLD_FORMS = {
    "no block address": lambda raw: drop(blocks(raw), "address"),
    "no pool ids": lambda raw: [drop(raw["segments"], "segment_pool_id"), drop(events(raw), "pool_id")],
    "no expandable flag": lambda raw: drop(raw["segments"], "is_expandable"),
    "no frames anywhere": lambda raw: [drop(x, "frames") for x in (raw["segments"], blocks(raw), events(raw))],
    "no stream": lambda raw: drop(events(raw), "stream"),
    "no settings": lambda raw: [raw.pop("allocator_settings"), raw.pop("external_annotations")],
    "no time": lambda raw: drop(events(raw), "time_us"),
    "new keys": lambda raw: [each.update(surprise={"a": [1]}) for each in (raw, *raw["segments"], *events(raw))],
    "awaiting": lambda raw: [rename(block) for block in blocks(raw)],
    "history": lambda raw: [to_history(block) for block in blocks(raw)],
}


def events(raw: Raw) -> list[Raw]:
    return [event for trace in raw["device_traces"] for event in trace]


def blocks(raw: Raw) -> list[Raw]:
    return [block for segment in raw["segments"] for block in segment["blocks"]]


def drop(rows: list[Raw], key: str) -> None:
    for row in rows:
        row.pop(key, None)


def rename(block: Raw) -> None:
    if block["state"] == "active_pending_free":
        block["state"] = "active_awaiting_free"


def to_history(block: Raw) -> None:
    """As torch 2.0 had it, and the oldest files without requested_size."""
    record = {"addr": block.pop("address"), "real_size": block.pop("requested_size"), "frames": block.pop("frames")}
    block["history"] = [record, {"addr": 1, "real_size": 99, "frames": []}]


@pytest.mark.parametrize("form", OLD_FORMS)
@given(jobs=JOBS, keep=KEEP)
@settings(max_examples=20, deadline=None)
def test_older_and_newer_forms_give_the_same_bytes(form: str, jobs: list[Job], keep: int | None) -> None:
    raw = snapshot(jobs, keep)
    expected = reader.from_dict(raw)
    OLD_FORMS[form](raw)
    found = reader.from_dict(raw)
    assert found.problems == ()
    assert check.self_check(found) == ()
    for ours, theirs in zip(found.devices, expected.devices, strict=True):
        assert timeline.extent(ours) == timeline.extent(theirs)
        assert ours.blocks.address.tolist() == theirs.blocks.address.tolist()
        assert ours.trace.address.tolist() == theirs.trace.address.tolist()
        if form != "no frames anywhere":
            assert [found.stacks.of(i) for i in ours.blocks.stack] == [
                expected.stacks.of(i) for i in theirs.blocks.stack
            ]
