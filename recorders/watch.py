"""Watches a job as it runs: asks the recorder for a few numbers at the end of each step, and tells of what is coming.

The line that grows is looked up in a snapshot once, when a leak is told.
"""

import contextlib
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from ..diagnosers.call_sites import Lines
from ..snapshots.timeline import lifetimes
from .launch import RunSpec
from .recorder import Recorder
from .uploading import say
from .watching import WARN_AT, StepSample, Warned, Watcher

if TYPE_CHECKING:
    from .progress import Progress

LOOKED_BACK_STEPS = 5


class Watch:
    def __init__(self, recorder: Recorder, progress: "Progress", warn_at: float) -> None:
        self.recorder = recorder
        self.progress = progress
        self.watcher = Watcher(warn_at)

    @classmethod
    def of(cls, spec: RunSpec, recorder: Recorder, progress: "Progress") -> "Watch | None":
        if not spec.watch and spec.warn_at is None:
            return None
        return cls(recorder, progress, WARN_AT if spec.warn_at is None else spec.warn_at)

    def step(self, step: int) -> None:
        room = self.recorder.room()
        if room is None:
            return
        live, peak, _ = self.recorder.allocated()
        reserved, free, total = room
        sample = StepSample(step=step, live=live, peak=peak, reserved=reserved, free=free, total=total)
        for warned in self.watcher.step(sample):
            self._tell(warned)

    def _tell(self, warned: Warned) -> None:
        if warned.kind == "leak":
            with contextlib.suppress(Exception):  # the warning matters more than its line
                warned = replace(warned, location=growing_line(self.recorder))
        where = f" ({warned.location})" if warned.location else ""
        say(f"warning, step {warned.step}: {warned.text}{where}")
        self.progress.tell(
            {
                "warning": warned.kind,
                "step": warned.step,
                "text": warned.text,
                "bytes": warned.bytes,
                "steps_left": warned.steps_left,
                "location": warned.location,
            }
        )


def growing_line(recorder: Recorder) -> str | None:
    """`train.py:88`: the line of the script that made most of what the last steps left behind."""
    snapshot = recorder.snapshot(()).snapshot
    recording = snapshot.recording
    if recording is None or not snapshot.devices:
        return None
    held: dict[str, int] = defaultdict(int)
    lines = Lines(snapshot)
    for device in snapshot.devices:
        marks = recording.devices[device.device].marks
        latest = max((mark.step for mark in marks), default=0)
        first = next((mark.event for mark in marks if mark.step > latest - LOOKED_BACK_STEPS), 0)
        until = next((mark.event for mark in marks if mark.step == latest), len(device.trace))
        lives = lifetimes(device)
        # alive since before this step: what this one still needs is not left behind
        staying = (lives.birth >= first) & (lives.birth < until) & (lives.death == len(device.trace))
        for stack, size in zip(lives.alloc_stack[staying].tolist(), lives.requested[staying].tolist(), strict=True):
            where = lines.of(stack)
            if where is not None:
                held[f"{where.file.rsplit('/', 1)[-1]}:{where.line}"] += size
    return max(held, key=lambda each: held[each], default=None)
