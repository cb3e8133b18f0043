"""The written file: PyTorch's shape, few opcodes, shared frames, the recording beside it, whole or not at all."""

import json
import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
from oomdoc.snapshots import check, reader, writer
from oomdoc.snapshots.model import DeviceRecording, Mark, Recording, Snapshot

from .generated import Job, snapshot

# what torch/utils/viz/MemoryViz.js can unpickle
VIZ_OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "APPEND", "APPENDS",
    "SETITEM", "SETITEMS", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "LIST", "DICT", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "NONE", "BINUNICODE",
    "SHORT_BINUNICODE",
}  # fmt: skip
SEGMENT_KEYS = {
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
    "segment_pool_id", "is_expandable", "frames", "blocks",
}  # fmt: skip
EVENT_KEYS = {"action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata", "pool_id", "frames"}


@pytest.fixture
def recorded() -> Snapshot:
    read = reader.from_dict(snapshot([Job(3).run(80), Job(4, device=1).run(300)]))
    return with_recording(read)


def with_recording(read: Snapshot) -> Snapshot:
    rng = np.random.default_rng(0)
    devices = {}
    for device in read.devices:
        n = len(device.trace)
        devices[device.device] = DeviceRecording(
            category=rng.integers(-1, 2, n).astype(np.int8),
            module=rng.integers(-1, 3, n).astype(np.int32),
            estimated=rng.integers(0, 2, n).astype(bool),
            marks=(Mark(event=0, step=0, phase="setup"), Mark(event=n // 2, step=1, phase="forward"),
                   Mark(event=n // 2 + 1, step=1, phase="setup")),
            category_by_address={2**63 + 512: 1, 4096: 0},
        )  # fmt: skip
    recording = Recording(
        schema="oomdoc.recording/1", kind="virtual", argv=("train.py", "--lr", "1e-3"), versions={"torch": "2.13.0"},
        gpu="a100-40gb", capacity_bytes=42 << 30, outside_bytes=None, rank=1, world_size=8,
        categories=("parameter", "activation"), modules=("", "layers.0", "layers.1"), devices=devices,
        facts={"optimizer": {"name": "AdamW", "betas": (0.9, 0.95)}, "batch": np.int64(8), "none": None},
        fidelity={"estimated": ["aten::mm"], "share": 0.25, "exact": False},
    )  # fmt: skip
    return Snapshot(devices=read.devices, stacks=read.stacks, settings=read.settings, recording=recording)


def assert_same_recording(one: Recording | None, other: Recording | None) -> None:
    assert one is not None
    assert other is not None
    for name in ("schema", "kind", "argv", "versions", "gpu", "capacity_bytes", "outside_bytes", "rank", "world_size",
                 "categories", "modules", "fidelity"):  # fmt: skip
        assert getattr(one, name) == getattr(other, name), name
    assert one.facts == {"optimizer": {"name": "AdamW", "betas": [0.9, 0.95]}, "batch": 8, "none": None}
    assert one.devices.keys() == other.devices.keys()
    for ours, theirs in zip(one.devices.values(), other.devices.values(), strict=True):
        for column in ("category", "module", "estimated"):
            np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column))
            assert getattr(ours, column).dtype == getattr(theirs, column).dtype
        assert ours.marks == theirs.marks
        assert ours.category_by_address == theirs.category_by_address


def test_a_recording_survives_the_file_and_a_json_copy(recorded: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "rank0.pickle"
    writer.dump(recorded, path)
    assert check.self_check(recorded) == ()
    for read in (reader.load(path), reader.from_dict(json.loads(json.dumps(writer.to_dict(recorded))))):
        assert read.problems == ()
        assert check.self_check(read) == ()
        assert_same_recording(read.recording, recorded.recording)


def test_the_file_has_only_opcodes_that_memory_viz_knows(recorded: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "rank0.pickle"
    writer.dump(recorded, path)
    data = path.read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= VIZ_OPCODES
    assert data[:2] == b"\x80\x04"


def test_the_keys_are_those_of_torch(recorded: Snapshot) -> None:
    raw = writer.to_dict(recorded)
    assert list(raw) == ["segments", "device_traces", "allocator_settings", "external_annotations", "oomdoc"]
    for segment in raw["segments"]:
        assert segment.keys() == SEGMENT_KEYS
        live = [b for b in segment["blocks"] if b["state"] != "inactive"]
        assert segment["active_size"] == sum(b["size"] for b in live)
        assert segment["requested_size"] == sum(b["requested_size"] for b in live)
        assert segment["allocated_size"] == sum(b["size"] for b in live if b["state"] == "active_allocated")
        assert all(b.keys() == {"address", "size", "requested_size", "state", "frames"} for b in segment["blocks"])
    events = [event for trace in raw["device_traces"] for event in trace]
    assert {e["action"] for e in events} >= {"alloc", "free_requested", "free_completed", "segment_alloc", "oom"}
    for event in events:
        if event["action"] == "oom":
            assert event.keys() == EVENT_KEYS - {"addr"} | {"device_free"}
        else:
            assert event.keys() == EVENT_KEYS


def test_frames_and_stacks_are_shared_objects(recorded: Snapshot) -> None:
    raw = writer.to_dict(recorded)
    events = [event for trace in raw["device_traces"] for event in trace]
    lists = {id(event["frames"]) for event in events}
    frames = {id(frame) for event in events for frame in event["frames"]}
    assert len(lists) <= len(recorded.stacks.stacks) + 1 < len(events)
    assert len(frames) <= len(recorded.stacks.frames)


def test_devices_keep_their_number(tmp_path: Path) -> None:
    read = reader.from_dict(snapshot([Job(3, device=2).run(20)]))
    raw = writer.to_dict(read)
    assert [len(trace) > 0 for trace in raw["device_traces"]] == [False, False, True]
    assert [device.device for device in reader.from_dict(raw).devices] == [2]


def test_a_failed_write_leaves_the_old_file_and_no_other(
    recorded: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.pickle"
    path.write_bytes(b"old")
    monkeypatch.setattr(pickle, "dump", lambda raw, file, protocol: file.write(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.dump(recorded, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["rank0.pickle"]


def test_what_is_not_plain_is_refused_when_written(recorded: Snapshot) -> None:
    assert recorded.recording is not None
    recording = recorded.recording
    bad = Recording(**{**{n: getattr(recording, n) for n in Recording.__slots__}, "facts": {"model": object()}})
    with pytest.raises(TypeError, match="not a plain value"):
        writer.to_dict(Snapshot(devices=recorded.devices, stacks=recorded.stacks, recording=bad))


DAMAGE = {
    "not a dict": lambda raw: raw.update(oomdoc=[1]),
    "no devices": lambda raw: raw["oomdoc"].pop("devices"),
    "bad base64": lambda raw: raw["oomdoc"]["devices"]["0"].update(category="%%%"),
    "category out of range": lambda raw: raw["oomdoc"].update(categories=[]),
    "module out of range": lambda raw: raw["oomdoc"].update(modules=["a"]),
    "other kind": lambda raw: raw["oomdoc"].update(kind="other"),
    "capacity is text": lambda raw: raw["oomdoc"].update(capacity_bytes="many"),
    "deep facts": lambda raw: raw["oomdoc"].update(facts=nested(50)),
}


def nested(levels: int) -> dict[str, object]:
    out: dict[str, object] = {}
    for _ in range(levels):
        out = {"inner": out}
    return out


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_recording_is_left_out_and_named(recorded: Snapshot, damage: str) -> None:
    raw = writer.to_dict(recorded)
    DAMAGE[damage](raw)
    read = reader.from_dict(raw)
    assert read.recording is None
    assert "recording is damaged" in read.problems[0]
    assert len(read.devices) == 2


def test_another_version_and_other_events_are_named(recorded: Snapshot) -> None:
    raw = writer.to_dict(recorded)
    raw["oomdoc"]["schema"] = "oomdoc.recording/9"
    assert "another version" in reader.from_dict(raw).problems[0]
    raw = writer.to_dict(recorded)
    raw["device_traces"][1].append({"action": "snapshot", "addr": 0, "size": 0, "stream": 0})
    read = reader.from_dict(raw)
    assert read.recording is not None
    assert list(read.recording.devices) == [0]
    assert read.problems == ("device 1: the recording does not fit the trace and was left out",)
