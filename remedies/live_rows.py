"""From a profile to its what-if timeline: every allocation of the device with category, phase, step and module."""

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.attribution.facts import Facts, gather
from ..diagnosers.attribution.infer import infer
from ..diagnosers.attribution.phases import BACKWARD as INFERRED_BACKWARD
from ..diagnosers.attribution.phases import FORWARD as INFERRED_FORWARD
from ..diagnosers.attribution.phases import OPTIMIZER as INFERRED_OPTIMIZER
from ..diagnosers.interface import CATEGORIES, Category, DeviceProfile
from ..snapshots.model import DeviceRecording, Recording
from ..snapshots.timeline import Lifetimes, lifetimes
from .whatif_timeline import BACKWARD, FORWARD, OPTIMIZER, OTHER, PHASES, Run, Timeline, phases_at, runs_of

_UNKNOWN = CATEGORIES.index(Category.UNKNOWN.value)
_INFERRED_PHASE = {INFERRED_FORWARD: FORWARD, INFERRED_BACKWARD: BACKWARD, INFERRED_OPTIMIZER: OPTIMIZER}


def timeline_of(profile: DeviceProfile) -> Timeline:
    """One row per allocation. Categories are those recorded where there are any, else inferred.

    A request that failed (the out-of-memory that ended the trace) is the last row: it would have lived.
    """
    device, recording, recorded = profile.device_snapshot, profile.snapshot.recording, profile.recording
    lives = lifetimes(device)
    events = len(device.trace)
    category = _recorded_categories(lives, recording, recorded)
    facts: Facts | None = None
    missing = np.flatnonzero(category < 0)
    if len(missing):
        facts = gather(profile.snapshot, device)
        verdicts = infer(facts, missing.tolist())
        for row in missing.tolist():
            verdict = verdicts.get(row)
            category[row] = CATEGORIES.index(verdict.category.value) if verdict else _UNKNOWN
    runs = _runs(profile, facts, events)
    birth = lives.birth.astype(np.float64)
    phase, step = phases_at(runs, birth)
    module = np.full(len(lives), -1, np.int32)
    if recorded is not None and len(recorded.module):
        known = (lives.birth >= 0) & (lives.birth < len(recorded.module))
        module[known] = recorded.module[lives.birth[known]]
    timeline = Timeline(
        size=lives.requested.astype(np.int64),
        birth=birth,
        death=lives.death.astype(np.float64),
        category=category,
        phase=phase,
        step=step,
        module=module,
        stack=lives.alloc_stack,
        stream=lives.stream,
        events=events,
        modules=recording.modules if recording else (),
        runs=runs,
    )
    return _with_failed_request(timeline, profile)


def _recorded_categories(
    lives: Lifetimes, recording: Recording | None, recorded: DeviceRecording | None
) -> NDArray[np.int8]:
    """Index into CATEGORIES by row; -1 where nothing was recorded."""
    category = np.full(len(lives), -1, np.int8)
    if recording is None or recorded is None:
        return category
    ours = np.array([CATEGORIES.index(c) if c in CATEGORIES else -1 for c in recording.categories] + [-1], np.int8)
    born = (lives.birth >= 0) & (lives.birth < len(recorded.category))
    category[born] = ours[recorded.category[lives.birth[born]]]
    for row in np.flatnonzero(lives.birth < 0).tolist():
        category[row] = ours[recorded.category_by_address.get(int(lives.address[row]), -1)]
    category[category == _UNKNOWN] = -1
    return category


def _runs(profile: DeviceProfile, facts: Facts | None, events: int) -> tuple[Run, ...]:
    recorded = profile.recording
    if recorded is not None and recorded.marks:
        return runs_of(((mark.event, mark.step, mark.phase) for mark in recorded.marks), events)
    if facts is None:
        facts = gather(profile.snapshot, profile.device_snapshot)
    if not events:
        return ()
    phase = np.array([PHASES.index(_INFERRED_PHASE.get(int(p), OTHER)) for p in facts.phases.phase])
    edges = np.flatnonzero(np.diff(phase)) + 1
    starts = [0, *edges.tolist()]
    ends = [*edges.tolist(), events]
    bounds = [step.event for step in profile.steps]
    return tuple(
        Run(PHASES[phase[start]], 1 + int(np.searchsorted(bounds, start)), start, end)
        for start, end in zip(starts, ends, strict=True)
    )


def _with_failed_request(timeline: Timeline, profile: DeviceProfile) -> Timeline:
    if profile.oom is None:
        return timeline
    event = float(profile.oom.event)
    step, phase = timeline.phase_at(event)
    category = Category.TEMPORARY if phase in (BACKWARD, OPTIMIZER) else Category.ACTIVATION
    span = (profile.oom.requested_bytes, event, float(timeline.events))
    return timeline.added([span], category=category, phase=phase, step=step)
