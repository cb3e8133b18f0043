"""Trace Event JSON, which ui.perfetto.dev and chrome://tracing open: memory by category, allocator, blocks, steps.

Format: "Trace Event Format", Google (counters C, complete slices X, async slices b and e, instants i, metadata M).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...diagnosers.attribution.whole_trace import ORDER, History, history
from ...diagnosers.call_sites import Lines
from ...diagnosers.interface import DeviceProfile
from ...snapshots.model import Action, DeviceSnapshot
from ...snapshots.timeline import live_bytes, reserved_bytes
from ..model import Report
from ..sampling import moments, stacked
from ..text import CATEGORY_TITLES, device_title, place, size
from .clock import microseconds
from .needs import devices_of

MOST_BLOCKS = 20_000  # slices; the largest, where there are more
BUCKETS = 20_000  # of the counters, each with its highest and lowest moment
_OBTAINED = {Action.SEGMENT_ALLOC: "segment", Action.SEGMENT_MAP: "pages"}
_GIVEN_BACK = {Action.SEGMENT_FREE: "segment", Action.SEGMENT_UNMAP: "pages"}

Event = dict[str, Any]


def render(report: Report) -> str:
    events: list[Event] = []
    notes: dict[str, str] = {}
    devices = devices_of(report, "perfetto")
    for pid, profile in enumerate(devices, 1):
        name = device_title(profile, report.source.world_size, len(devices)) or "GPU"
        events += [_meta(pid, 0, "process_name", f"{name} memory"), _meta(pid, 1, "thread_name", "steps")]
        mine, recorded = _device(pid, profile)
        events += mine
        notes[name] = "clock as recorded" if recorded else "no clock recorded: 1 microsecond stands for one event"
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"made by": "oomdoc", **notes}}
    return json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"


def _meta(pid: int, tid: int, what: str, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _device(pid: int, profile: DeviceProfile) -> tuple[list[Event], bool]:
    clock, recorded = microseconds(profile.device_snapshot.trace)
    at = [int(each) for each in clock]
    past = history(profile)
    timed = [
        *_counters(pid, profile, past, at),
        *_steps(pid, profile, at),
        *_driver(pid, profile.device_snapshot, at),
        *_failures(pid, profile.device_snapshot, at),
        *_blocks(pid, profile, past, at),
    ]
    return sorted(timed, key=lambda event: int(event["ts"])), recorded


def _counters(pid: int, profile: DeviceProfile, past: History, at: list[int]) -> Iterator[Event]:
    """A counter for each category, and the allocator's; only where a value changes."""
    device = profile.device_snapshot
    live, reserved = live_bytes(device), reserved_bytes(device)
    drawn = moments(live, reserved, [step.event for step in profile.steps], BUCKETS)
    lives = past.lives
    columns = stacked(drawn, lives.birth, lives.death, lives.requested, past.category, len(ORDER))
    used = [code for code in range(len(ORDER)) if columns[code].any()]
    before: tuple[Any, ...] = ()
    for index, event in enumerate(drawn.tolist()):
        ts = at[max(event, 0)]
        values = {CATEGORY_TITLES[ORDER[code].value]: int(columns[code, index]) for code in used}
        held = {"reserved": int(reserved[event + 1]), "not in tensors": int(reserved[event + 1] - live[event + 1])}
        if (now := (*values.values(), *held.values())) != before:
            yield {"ph": "C", "pid": pid, "tid": 0, "ts": ts, "name": "by category", "args": values}
            yield {"ph": "C", "pid": pid, "tid": 0, "ts": ts, "name": "allocator", "args": held}
        before = now


def _steps(pid: int, profile: DeviceProfile, at: list[int]) -> Iterator[Event]:
    """Slices of the recorded phases; of the steps alone where the phases were not recorded."""
    events = len(at) - 1
    marks = profile.recording.marks if profile.recording else ()
    for mark, after in zip(marks, [*(each.event for each in marks[1:]), events], strict=False):
        name = f"step {mark.step}, {mark.phase}"
        yield _slice(pid, name, at[mark.event], at[after], {"step": mark.step, "phase": mark.phase})
    if not marks:
        start = 0
        for step in profile.steps:
            yield _slice(pid, f"step {step.step}", at[start], at[step.event + 1], {"highest bytes": step.peak_bytes})
            start = step.event + 1


def _slice(pid: int, name: str, start: int, end: int, args: Mapping[str, object]) -> Event:
    return {"ph": "X", "pid": pid, "tid": 1, "ts": start, "dur": max(end - start, 0), "name": name, "args": args}


def _driver(pid: int, device: DeviceSnapshot, at: list[int]) -> Iterator[Event]:
    """What was had from the driver and given back, as instants."""
    trace = device.trace
    for event in np.flatnonzero((trace.action >= Action.SEGMENT_ALLOC) & (trace.action <= Action.SEGMENT_UNMAP)):
        action, bytes_ = Action(int(trace.action[event])), int(trace.size[event])
        what = f"{_OBTAINED[action]} obtained" if action in _OBTAINED else f"{_GIVEN_BACK[action]} given back"
        yield {
            "ph": "i", "s": "p", "pid": pid, "tid": 0, "ts": at[event], "cat": "allocator",
            "name": f"{what}: {size(bytes_)}", "args": {"bytes": bytes_, "address": f"{int(trace.address[event]):#x}"},
        }  # fmt: skip


def _failures(pid: int, device: DeviceSnapshot, at: list[int]) -> Iterator[Event]:
    trace = device.trace
    for event in np.flatnonzero(trace.action == Action.OOM).tolist():
        asked = int(trace.size[event])
        yield {
            "ph": "i", "s": "g", "pid": pid, "tid": 0, "ts": at[event], "cat": "allocator",
            "name": f"out of memory: {size(asked)} asked for",
            "args": {"bytes": asked, "device_free_bytes": trace.oom_device_free.get(event)},
        }  # fmt: skip


def _blocks(pid: int, profile: DeviceProfile, past: History, at: list[int]) -> Iterator[Event]:
    """Each block as a slice over its life, named for what it is and where it was made."""
    lines = Lines(profile.snapshot)
    lives = past.lives
    rows = np.argsort(-lives.requested, kind="stable")[:MOST_BLOCKS]
    for row in rows.tolist():
        bytes_, title = int(lives.requested[row]), CATEGORY_TITLES[ORDER[past.category[row]].value]
        birth, death = int(lives.birth[row]), min(int(lives.death[row]), len(at) - 1)
        shared = {"pid": pid, "tid": 2, "cat": "block", "id": f"{pid}.{row}", "name": f"{title} {size(bytes_)}"}
        module = past.modules[past.module[row]] if 0 <= past.module[row] < len(past.modules) else None
        args = {"bytes": bytes_, "line": place(lines.of(int(lives.alloc_stack[row]))), "module": module}
        yield {"ph": "b", "ts": at[max(birth, 0)], "args": args, **shared}
        yield {"ph": "e", "ts": at[death], **shared}
