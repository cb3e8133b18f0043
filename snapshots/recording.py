"""The "oomdoc" key of a snapshot: a Recording as plain values, its columns as base64 text.

Text, because memory_viz's own unpickler knows few opcodes (no bytes), and because it survives a JSON copy.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .model import DeviceRecording, Mark, Recording
from .plain import plain

SCHEMA = "oomdoc.recording/1"
KINDS = ("virtual", "cuda")


def encode(recording: Recording) -> dict[str, Any]:
    """-> plain values only. Raises TypeError where `facts` or `fidelity` hold anything else."""
    return {
        "schema": recording.schema,
        "kind": recording.kind,
        "argv": plain(recording.argv),
        "versions": plain(recording.versions),
        "gpu": recording.gpu,
        "capacity_bytes": plain(recording.capacity_bytes),
        "outside_bytes": plain(recording.outside_bytes),
        "rank": int(recording.rank),
        "world_size": int(recording.world_size),
        "categories": plain(recording.categories),
        "modules": plain(recording.modules),
        "devices": {str(device): _encode_device(each) for device, each in recording.devices.items()},
        "facts": plain(recording.facts),
        "fidelity": plain(recording.fidelity),
    }


def _encode_device(device: DeviceRecording) -> dict[str, Any]:
    phases = list(dict.fromkeys(mark.phase for mark in device.marks))
    older = device.category_by_address
    return {
        "events": len(device.category),
        "category": _pack(device.category, "<i1"),
        "module": _pack(device.module, "<i4"),
        "estimated": _pack(device.estimated, "<u1"),
        "marks": {
            "phases": phases,
            "event": _pack([mark.event for mark in device.marks], "<i8"),
            "step": _pack([mark.step for mark in device.marks], "<i8"),
            "phase": _pack([phases.index(mark.phase) for mark in device.marks], "<i4"),
        },
        "older": {
            "address": _pack(list(older.keys()), "<u8"),
            "category": _pack(list(older.values()), "<i4"),
        },
    }


def decode(raw: object, events: Mapping[int, int]) -> tuple[Recording | None, list[str]]:
    """-> (recording, problems); `events` is the number of trace events of each device.

    A damaged recording is left out whole, one device's columns alone where only they do not fit its trace.
    """
    if raw is None:
        return None, []
    try:
        return _decode(raw, events)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, binascii.Error):
        return None, ['the "oomdoc" recording is damaged and was left out: categories are inferred instead']


def _decode(raw: Any, events: Mapping[int, int]) -> tuple[Recording | None, list[str]]:
    if raw["schema"] != SCHEMA:
        return None, [f'the "oomdoc" recording was written by another version (not {SCHEMA}) and was left out']
    if raw["kind"] not in KINDS:
        raise ValueError
    categories, modules = _texts(raw["categories"]), _texts(raw["modules"])
    devices, problems = {}, []
    for key, each in raw["devices"].items():
        number = int(key)
        device = _decode_device(each, len(categories), len(modules))
        if len(device.category) == events.get(number, 0):
            devices[number] = device
        else:
            problems.append(f"device {number}: the recording does not fit the trace and was left out")
    return Recording(
        schema=SCHEMA,
        kind=raw["kind"],
        argv=_texts(raw["argv"]),
        versions=dict(plain(raw["versions"])),
        gpu=_optional(raw["gpu"], str),
        capacity_bytes=_optional(raw["capacity_bytes"], int),
        outside_bytes=_optional(raw["outside_bytes"], int),
        rank=int(raw["rank"]),
        world_size=int(raw["world_size"]),
        categories=categories,
        modules=modules,
        devices=devices,
        facts=dict(plain(raw["facts"])),
        fidelity=dict(plain(raw["fidelity"])),
    ), problems


def _decode_device(raw: Any, categories: int, modules: int) -> DeviceRecording:
    category = _unpack(raw["category"], "<i1", np.int8, high=categories)
    module = _unpack(raw["module"], "<i4", np.int32, high=modules)
    estimated = _unpack(raw["estimated"], "<u1", np.uint8, high=2).astype(np.bool_)
    if not len(category) == len(module) == len(estimated) == raw["events"]:
        raise ValueError
    phases = _texts(raw["marks"]["phases"])
    marks = zip(
        _unpack(raw["marks"]["event"], "<i8", np.int64, high=len(category) + 1).tolist(),
        _unpack(raw["marks"]["step"], "<i8", np.int64).tolist(),
        _unpack(raw["marks"]["phase"], "<i4", np.int32, high=len(phases)).tolist(),
        strict=True,
    )
    older = zip(
        _unpack(raw["older"]["address"], "<u8", np.uint64).tolist(),
        _unpack(raw["older"]["category"], "<i4", np.int32, high=categories).tolist(),
        strict=True,
    )
    return DeviceRecording(
        category=category,
        module=module,
        estimated=estimated,
        marks=tuple(Mark(event=event, step=step, phase=phases[phase]) for event, step, phase in marks),
        category_by_address=dict(older),
    )


def _pack(values: Any, dtype: str) -> str:
    return base64.b64encode(np.asarray(values, np.dtype(dtype)).tobytes()).decode("ascii")


def _unpack(text: str, dtype: str, native: type[Any], *, high: int | None = None) -> NDArray[Any]:
    """Column from base64; with `high`, every value must be -1 (none) or an index below it."""
    out = np.frombuffer(base64.b64decode(text, validate=True), np.dtype(dtype)).astype(native)
    if high is not None and len(out) and not (int(out.min()) >= -1 and int(out.max()) < high):
        raise ValueError
    return out


def _texts(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple) or not all(isinstance(each, str) for each in raw):
        raise ValueError
    return tuple(raw)


def _optional(raw: Any, kind: type[Any]) -> Any:
    if raw is not None and type(raw) is not kind:
        raise ValueError
    return raw
