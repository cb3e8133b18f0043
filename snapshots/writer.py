"""Writing a Snapshot as the dict of `torch.cuda.memory._snapshot()` (keys of torch 2.13), plus the key "oomdoc".

Frame dicts and frame lists are shared objects, as PyTorch writes them, so the pickle stays small.
"""

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from . import recording
from .model import Action, BlockState, DeviceSnapshot, Snapshot
from .plain import plain
from .unpickler import collector_paused

PROTOCOL = 4  # memory_viz refuses 5 (pytorch/pytorch#183842)
STATE_NAMES = {state.value: state.name.lower() for state in BlockState}
ACTION_NAMES = {action.value: action.name.lower() for action in Action}

FrameLists = list[list[dict[str, Any]]]


def dump(snapshot: Snapshot, path: str | Path) -> None:
    """Write the pickle whole or not at all: a temporary file beside `path`, renamed over it."""
    with collector_paused():
        dump_dict(to_dict(snapshot), path)


def dump_dict(raw: dict[str, Any], path: str | Path) -> None:
    """The same of PyTorch's own dict."""
    path = Path(path)
    with collector_paused():
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                pickle.dump(raw, file, protocol=PROTOCOL)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def to_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Raises TypeError where the recording or the settings hold anything but plain values."""
    frames = [{"name": f.name, "filename": f.filename, "line": f.line} for f in snapshot.stacks.frames]
    # the last list is the one of index -1, no stack
    lists: FrameLists = [[frames[i] for i in stack] for stack in snapshot.stacks.stacks] + [[]]
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max((d.device + 1 for d in snapshot.devices), default=0))]
    for device in snapshot.devices:
        traces[device.device] = _trace(device, lists)
    out: dict[str, Any] = {
        "segments": [segment for device in snapshot.devices for segment in _segments(device, lists)],
        "device_traces": traces,
        "allocator_settings": plain(snapshot.settings),
        "external_annotations": [
            {"device": a.device, "stage": a.stage, "name": a.name, "time_us": a.time_us} for a in snapshot.annotations
        ],
    }
    if snapshot.recording is not None:
        out["oomdoc"] = recording.encode(snapshot.recording)
    return out


def _trace(device: DeviceSnapshot, lists: FrameLists) -> list[dict[str, Any]]:
    trace = device.trace
    rows = zip(
        trace.action.tolist(),
        trace.address.tolist(),
        trace.size.tolist(),
        trace.stream.tolist(),
        trace.time_us.tolist(),
        trace.stack.tolist(),
        strict=True,
    )
    out: list[dict[str, Any]] = [
        {
            "action": ACTION_NAMES[action],
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time,
            "compile_context": "N/A",
            "user_metadata": "",
            "frames": lists[stack],
        }
        for action, address, size, stream, time, stack in rows
    ]
    for row in np.flatnonzero(trace.time_us < 0):
        del out[row]["time_us"]
    for row in np.flatnonzero(trace.pool >= 0):
        out[row]["pool_id"] = device.pools[trace.pool[row]]
    for row in np.flatnonzero(trace.action == Action.OOM):
        del out[row]["addr"]
        out[row]["device_free"] = int(trace.oom_device_free.get(int(row), 0))
    return out


def _segments(device: DeviceSnapshot, lists: FrameLists) -> list[dict[str, Any]]:
    segments = device.segments
    out: list[dict[str, Any]] = [
        {
            "device": device.device,
            "address": int(segments.address[row]),
            "total_size": int(segments.total_bytes[row]),
            "allocated_size": 0,
            "active_size": 0,
            "requested_size": 0,
            "stream": int(segments.stream[row]),
            "segment_type": "large" if segments.large[row] else "small",
            "segment_pool_id": device.pools[segments.pool[row]],
            "is_expandable": bool(segments.expandable[row]),
            "frames": lists[segments.stack[row]],
            "blocks": [],
        }
        for row in range(len(segments))
    ]
    blocks = device.blocks
    rows = zip(
        blocks.address.tolist(),
        blocks.size.tolist(),
        blocks.requested.tolist(),
        blocks.state.tolist(),
        blocks.segment.tolist(),
        blocks.stack.tolist(),
        strict=True,
    )
    for address, size, requested, state, row, stack in rows:
        segment = out[row]
        segment["blocks"].append(
            {
                "address": address,
                "size": size,
                "requested_size": requested,
                "state": STATE_NAMES[state],
                "frames": lists[stack],
            }
        )
        if state != BlockState.INACTIVE:
            segment["active_size"] += size
            segment["requested_size"] += requested
        if state == BlockState.ACTIVE_ALLOCATED:
            segment["allocated_size"] += size
    return out


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
