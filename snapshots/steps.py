"""Where one training step ends and the next begins, as far as the file tells."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

import numpy as np

from .model import Annotation, DeviceRecording, DeviceSnapshot, Snapshot

PROFILER_STEP = "ProfilerStep#"
OPTIMIZER_STEP = "Optimizer.step#"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """Step `step` (1-based) of a device is its events [start, end)."""

    step: int
    start: int
    end: int


def steps(snapshot: Snapshot, device: DeviceSnapshot) -> tuple[StepWindow, ...]:
    """Windows in order, not overlapping; empty where neither marks nor annotations tell.

    From oomdoc's own marks; else from the profiler's step ranges; else a step ends where its `Optimizer.step` range
    ends (with several optimizers, where the last one of each round ends). What follows the last optimizer step is no
    step of its own: the recording stopped inside it.
    """
    recorded = snapshot.recording.devices.get(device.device) if snapshot.recording else None
    if recorded is not None and recorded.marks:
        return _from_marks(recorded, len(device.trace))
    mine = [a for a in snapshot.annotations if a.device == device.device]
    if not len(device.trace) or device.trace.time_us.min() < 0 or not mine:
        return ()
    ranges = _ranges(mine, PROFILER_STEP)
    if ranges:
        spans = [(start, end) for _, start, end in ranges]
    else:
        spans = _optimizer_spans(_ranges(mine, OPTIMIZER_STEP), int(device.trace.time_us[0]))
    clock = np.maximum.accumulate(device.trace.time_us)
    edges = np.searchsorted(clock, np.array(spans, np.int64).reshape(-1, 2), side="right")
    starts = np.maximum(edges[:, 0], np.append(0, edges[:-1, 1]))
    ends = edges[:, 1].tolist()
    return tuple(StepWindow(step=i + 1, start=a, end=ends[i]) for i, a in enumerate(starts.tolist()))


def moment(snapshot: Snapshot, device: DeviceSnapshot, event: int) -> tuple[int | None, str | None]:
    """(step, phase) that the job is in at `event`; None for each that is not known."""
    recorded = snapshot.recording.devices.get(device.device) if snapshot.recording else None
    if recorded is not None and recorded.marks:
        at = bisect_right(recorded.marks, event, key=lambda mark: mark.event) - 1
        mark = recorded.marks[max(at, 0)]
        return (mark.step if mark.step >= 1 else None), mark.phase
    inside = [window.step for window in steps(snapshot, device) if window.start <= event < window.end]
    return (inside[0] if inside else None), None


def _from_marks(recorded: DeviceRecording, events: int) -> tuple[StepWindow, ...]:
    """One window per step, from its first mark to the first mark of another; the setup before the first is none."""
    out: list[StepWindow] = []
    for mark, following in zip(recorded.marks, (*recorded.marks[1:], None), strict=True):
        end = following.event if following else events
        if mark.phase == "setup" or mark.step < 1:
            continue
        if out and out[-1].step == mark.step:
            out[-1] = StepWindow(step=mark.step, start=out[-1].start, end=end)
        else:
            out.append(StepWindow(step=mark.step, start=mark.event, end=end))
    return tuple(out)


def _ranges(annotations: list[Annotation], prefix: str) -> list[tuple[str, int, int]]:
    """(name, start, end) of the outermost ranges whose name starts with `prefix`, by start; unclosed ones are none."""
    out: list[tuple[str, int, int]] = []
    open_since: dict[str, int] = {}
    depth: Counter[str] = Counter()
    for each in sorted(annotations, key=lambda a: a.time_us):
        if not each.name.startswith(prefix):
            continue
        if each.stage == "START":
            if not depth[each.name]:
                open_since[each.name] = each.time_us
            depth[each.name] += 1
        elif each.stage == "END" and depth[each.name]:
            depth[each.name] -= 1
            if not depth[each.name]:
                out.append((each.name, open_since[each.name], each.time_us))
    return sorted(out, key=lambda r: r[1])


def _optimizer_spans(ranges: list[tuple[str, int, int]], first: int) -> list[tuple[int, int]]:
    if not ranges:
        return []
    rounds = Counter(name for name, _, _ in ranges)
    most = max(rounds.values())
    # of the optimizers that step in every round, the one that comes last in the first round closes it
    order = list(dict.fromkeys(name for name, _, _ in ranges))
    closing = [name for name in order if rounds[name] == most][-1]
    ends = [end for name, _, end in ranges if name == closing]
    return list(zip([first - 1, *ends[:-1]], ends, strict=True))
