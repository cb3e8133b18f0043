"""Where one iteration ends and the next begins: from marks, annotations, the optimizer, or a period in the events."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Annotation, Mark, Trace
from ..interface import StepBytes
from .facts import Facts
from .periods import find_period
from .phases import NAMES, OPTIMIZER, ZERO_GRAD, Window, distinct, windows

PROFILER_STEP = "ProfilerStep#"


@dataclass(frozen=True, slots=True)
class Boundaries:
    """`events[i]` is the last event of step i + 1; the last, unfinished step has none."""

    events: tuple[int, ...]
    source: str  # how they were found


def recorded_boundaries(marks: Sequence[Mark], last_event: int, out_of_memory: bool) -> Boundaries:
    """From the marks of oomdoc's own recordings; the step that the recording ends in counts once its optimizer ran."""
    events = [mark.event - 1 for before, mark in pairwise(marks) if mark.step > before.step and before.step > 0]
    if not out_of_memory and marks and any(m.step == marks[-1].step and m.phase == "optimizer" for m in marks):
        events.append(last_event)  # the script ended after its last step
    if not events and not any(mark.phase in ("backward", "optimizer") for mark in marks):
        starts = [mark.event for mark in marks if mark.phase == "forward"]
        return Boundaries(tuple(event - 1 for event in starts[1:]), "recorded forwards")  # an evaluation
    return Boundaries(tuple(events), "recorded")


def find_boundaries(facts: Facts, trace: Trace, annotations: Sequence[Annotation]) -> Boundaries:
    """First that is there: optimizer steps, profiler steps, zero_grad, a period of the events."""
    if facts.steps:
        return Boundaries(tuple(w.last for w in _closing(facts.steps)), "Optimizer.step annotations")
    for phase, source in ((OPTIMIZER, "optimizer frames"), (ZERO_GRAD, "zero_grad frames")):
        ends = distinct(facts.phases.run_end[facts.phases.phase == phase], facts.events)
        if len(ends):
            return Boundaries(tuple(ends.tolist()), source)
    profiled = windows(annotations, trace.time_us, PROFILER_STEP)
    if profiled:
        return Boundaries(tuple(w.last for w in profiled), "profiler steps")
    period = find_period(trace, facts)
    return Boundaries(period, "repeating allocations") if period else Boundaries((), "none found")


def _closing(optimizers: Sequence[Window]) -> list[Window]:
    """With several optimizers (a GAN's) the one that closes a round: of those that step most often, the last in it.

    Two of one class have one name in the trace, and count as one that steps twice as often.
    """
    rounds = Counter(window.name for window in optimizers)
    most = max(rounds.values())
    closing = [name for name in dict.fromkeys(window.name for window in optimizers) if rounds[name] == most][-1]
    return [window for window in optimizers if window.name == closing]


def step_bytes(boundaries: Boundaries, live: NDArray[np.int64], first_step: int = 1) -> tuple[StepBytes, ...]:
    """`live` has shape (events + 1,): the state before the first event and after each."""
    found = []
    start = 0
    for index, event in enumerate(boundaries.events):
        inside = live[start : event + 2]
        found.append(
            StepBytes(
                step=first_step + index,
                event=event,
                live_bytes=int(live[event + 1]),
                peak_bytes=int(inside.max()) if len(inside) else int(live[event + 1]),
            )
        )
        start = event + 1
    return tuple(found)


def step_at(boundaries: Boundaries, event: int, first_step: int = 1) -> int | None:
    """The step that `event` belongs to; None where no boundaries are known."""
    if not boundaries.events or event < 0:
        return None
    return first_step + int(np.searchsorted(np.asarray(boundaries.events), event, side="left"))


def mark_at(marks: Sequence[Mark], event: int) -> Mark | None:
    """The mark in force at `event`."""
    at = bisect_right(marks, event, key=lambda mark: mark.event)
    return marks[at - 1] if at else None


def phase_name(facts: Facts, event: int) -> str | None:
    """The inferred phase in the words of `Mark`; None without events."""
    if event < 0 or not facts.events:
        return None
    name = NAMES[facts.phases.at(event)]
    return "other" if name == "zero_grad" else name
