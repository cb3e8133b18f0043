"""Columns kept as bytes come back the same, and a file that has changed since is read anew."""

import io
import os
import pickle
from pathlib import Path

import pytest
from oomdoc.snapshots import reader, store, writer
from oomdoc.snapshots.model import Snapshot


def through_bytes(snapshot: Snapshot) -> Snapshot:
    file = io.BytesIO()
    store.write(snapshot, file, {"size": 7})
    again, source = store.read(file.getvalue())
    assert source == {"size": 7}
    return again


def test_every_real_snapshot_comes_back_whole(shared: Path) -> None:
    for path in sorted((shared / "data" / "snapshots").iterdir()):
        if path.suffix in (".pickle", ".json", ".html"):
            snapshot = reader.load(path)
            again = through_bytes(snapshot)
            assert writer.to_dict(again) == writer.to_dict(snapshot), path.name
            assert again.problems == snapshot.problems


def small(size: int) -> dict[str, object]:
    return {"segments": [], "device_traces": [[{"action": "alloc", "addr": 512, "size": size, "stream": 0}]]}


def test_a_large_file_is_read_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "KEEP_BYTES", 1)
    monkeypatch.setattr(reader, "FENCE_BYTES", 1)
    monkeypatch.setattr(reader.sandbox, "available", lambda: True)
    reads = []
    reading = reader.sandbox.Reading
    monkeypatch.setattr(reader.sandbox, "Reading", lambda *args: reads.append(1) or reading(*args))
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(small(100)))
    assert [int(reader.load(path).devices[0].trace.size[0]) for _ in range(3)] == [100] * 3
    assert len(reads) == 1
    path.write_bytes(pickle.dumps(small(200)))
    os.utime(path, ns=(1, 1))
    assert int(reader.load(path).devices[0].trace.size[0]) == 200
    assert len(reads) == 2


@pytest.mark.parametrize(
    "damage", [b"", b"oomdoc columns 1", b"oomdoc columns 1" + b"\xff" * 8, bytes(range(100, 200))]
)
def test_damaged_columns_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    monkeypatch.setattr(reader, "KEEP_BYTES", 1)
    monkeypatch.setattr(reader, "FENCE_BYTES", 1)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(small(100)))
    (tmp_path / ".snapshot.pickle.columns").write_bytes(damage)
    assert int(reader.load(path).devices[0].trace.size[0]) == 100


@pytest.mark.parametrize(
    ("before", "after"),
    [('"<u8"', '"|O8"'), ('"<u8", 1', '"<u8", -1'), ('"|u1"', '"<i8"'), ('[["a.py"', "[[7"), ("[0, 0]", "[0]")],
)
def test_columns_that_were_tampered_with_are_refused(before: str, after: str) -> None:
    raw = small(100)
    raw["device_traces"][0][0]["frames"] = [{"filename": "a.py", "line": 1, "name": "f"}]  # type: ignore[index]
    file = io.BytesIO()
    store.write(reader.from_dict(raw), file, {})
    whole = file.getvalue()
    assert before.encode() in whole
    spoilt = whole.replace(before.encode(), after.encode().ljust(len(before)), 1)
    with pytest.raises((ValueError, KeyError, TypeError, store.struct.error)):
        store.read(spoilt)


def test_indices_that_point_nowhere_are_refused() -> None:
    snapshot = reader.from_dict(small(100))
    snapshot.devices[0].trace.stack[0] = 5
    file = io.BytesIO()
    store.write(snapshot, file, {})
    with pytest.raises(ValueError, match="point outside the stack table"):
        store.read(file.getvalue())


def test_columns_cut_off_anywhere_are_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    store.write(reader.from_dict(small(100)), file, {})
    whole = file.getvalue()
    for length in range(0, len(whole), 7):
        with pytest.raises((ValueError, KeyError, TypeError, store.struct.error)):
            store.read(whole[:length])
