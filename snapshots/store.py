"""A snapshot as one block of bytes: a JSON header and raw columns. Never a pickle.

It carries a snapshot out of the process that read it, and is kept beside a large file so that the second command need
not read it again.
"""

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from . import recording
from .check import structure
from .model import Annotation, Blocks, DeviceSnapshot, Frame, Segments, Snapshot, Stacks, Trace
from .plain import plain

MAGIC = b"oomdoc columns 1"  # 16 bytes: columns stay aligned
_LENGTH = struct.Struct("<Q")
_DTYPES: Mapping[str, type[np.generic]] = {
    "action": np.uint8,
    "state": np.uint8,
    "address": np.uint64,
    "stream": np.uint64,
    "large": np.bool_,
    "expandable": np.bool_,
    "stack": np.int32,
    "pool": np.int32,
    "segment": np.int32,
}  # every other column is int64
_PARTS: Mapping[str, type[Any]] = {"trace": Trace, "segments": Segments, "blocks": Blocks}


def write(snapshot: Snapshot, file: IO[bytes], source: Mapping[str, int]) -> None:
    """`source` says what was read (size, time of change); `read` gives it back."""
    arrays = dict(_arrays(snapshot))
    header = {
        "source": dict(source),
        "arrays": [[name, column.dtype.str, len(column)] for name, column in arrays.items()],
        "frames": [[frame.filename, frame.line, frame.name] for frame in snapshot.stacks.frames],
        "devices": [
            {
                "device": device.device,
                "pools": device.pools,
                "oom_device_free": list(device.trace.oom_device_free.items()),
            }
            for device in snapshot.devices
        ],
        "settings": plain(snapshot.settings),
        "annotations": [[a.stage, a.name, a.device, a.time_us] for a in snapshot.annotations],
        "recording": recording.encode(snapshot.recording) if snapshot.recording else None,
        "problems": snapshot.problems,
    }
    text = json.dumps(header).encode()
    text += b" " * _padding(len(text))
    file.write(MAGIC + _LENGTH.pack(len(text)) + text)
    for column in arrays.values():
        file.write(np.ascontiguousarray(column).data)
        file.write(b"\0" * _padding(column.nbytes))


def read(data: bytes) -> tuple[Snapshot, dict[str, int]]:
    """-> (snapshot, source). Raises ValueError, KeyError, TypeError or struct.error on what `write` did not make."""
    if not data.startswith(MAGIC):
        raise ValueError("not a file of columns")
    start = len(MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    header = json.loads(data[start : start + length])
    arrays, at = {}, start + length
    for name, dtype, count in header["arrays"]:
        kind = np.dtype(_DTYPES.get(name.rpartition(".")[2], np.int64))
        if kind.str != dtype or count < 0:
            raise ValueError(f"{name} is no column of {kind}")
        arrays[name] = np.frombuffer(data, kind, count, at)
        at += count * kind.itemsize + _padding(count * kind.itemsize)
    devices = tuple(_device(arrays, row, raw) for row, raw in enumerate(header["devices"]))
    events = {device.device: len(device.trace) for device in devices}
    recorded, _ = recording.decode(header["recording"], events)
    snapshot = Snapshot(
        devices=devices,
        stacks=_stacks(arrays, header["frames"]),
        settings=header["settings"],
        annotations=tuple(Annotation(stage=s, name=n, device=d, time_us=t) for s, n, d, t in header["annotations"]),
        recording=recorded,
        problems=tuple(header["problems"]),
    )
    if broken := structure(snapshot):
        raise ValueError(broken[0])
    return snapshot, header["source"]


def kept(path: Path, source: Mapping[str, int]) -> Snapshot | None:
    """The snapshot kept beside `path`, where it was made from what `source` says."""
    try:
        snapshot, made_from = read(_beside(path).read_bytes())
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
    return snapshot if made_from == source else None


def keep(snapshot: Snapshot, path: Path, source: Mapping[str, int]) -> Snapshot:
    """Write it beside `path`, or leave it where that folder cannot be written to; -> snapshot."""
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_beside(path).name)
        try:
            with os.fdopen(handle, "wb") as file:
                write(snapshot, file, source)
            os.replace(name, _beside(path))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    return snapshot


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.columns")


def _padding(size: int) -> int:
    return -size % 8


def _arrays(snapshot: Snapshot) -> Iterator[tuple[str, NDArray[Any]]]:
    stacks = snapshot.stacks.stacks
    yield "stack_lengths", np.fromiter(map(len, stacks), np.int64, len(stacks))
    yield "stack_frames", np.fromiter(chain.from_iterable(stacks), np.int64)
    for row, device in enumerate(snapshot.devices):
        for part, kind in _PARTS.items():
            for name in _columns(kind):
                yield f"{row}.{part}.{name}", getattr(getattr(device, part), name)


def _columns(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind) if field.name != "oom_device_free"]


def _device(arrays: Mapping[str, NDArray[Any]], row: int, raw: Mapping[str, Any]) -> DeviceSnapshot:
    parts = {part: {name: arrays[f"{row}.{part}.{name}"] for name in _columns(kind)} for part, kind in _PARTS.items()}
    return DeviceSnapshot(
        device=raw["device"],
        trace=Trace(**parts["trace"], oom_device_free=dict(raw["oom_device_free"])),
        segments=Segments(**parts["segments"]),
        blocks=Blocks(**parts["blocks"]),
        pools=tuple((a, b) for a, b in raw["pools"]),
    )


def _stacks(arrays: Mapping[str, NDArray[Any]], frames: list[tuple[str, int, str]]) -> Stacks:
    ends = np.cumsum(arrays["stack_lengths"]).tolist()
    flat = arrays["stack_frames"].tolist()
    starts = [0, *ends[:-1]]
    if not all(tuple(map(type, frame)) == (str, int, str) for frame in frames):
        raise ValueError("frames are not file, line and name")
    return Stacks(
        frames=tuple(Frame(*frame) for frame in frames),
        stacks=tuple(tuple(flat[start:end]) for start, end in zip(starts, ends, strict=False)),
    )
