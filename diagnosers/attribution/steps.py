"""Where one iteration ends and the next begins: from marks, annotations, the optimizer, or a period in the events."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Annotation, Mark, Trace
from ..interface import StepBytes
from .facts import STEP_ANNOTATION, Facts
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
    begins = [mark.event for before, mark in pairwise(marks) if mark.step > before.step and before.step > 0]
    events = [event - 1 for event in _rounds(marks, begins)]
    if not out_of_memory and marks and any(m.step == marks[-1].step and m.phase == "optimizer" for m in marks):
        events.append(last_event)  # the script ended after its last step
    if not events and not any(mark.phase in ("backward", "optimizer") for mark in marks):
        # an evaluation; calls with nothing between them are one forward: its layers, called one by one
        starts = [mark.event for last, mark in pairwise(marks) if mark.phase == "forward" != last.phase]
        return Boundaries(tuple(event - 1 for event in starts[1:]), "recorded forwards")
    return Boundaries(tuple(events), "recorded")


def _rounds(marks: Sequence[Mark], begins: Sequence[int]) -> list[int]:
    """Of the events at which a step begins by its mark, those that begin a round of the job.

    Until the first optimizer's step a recorder takes each backward for a step: those of the first round are inner ones
    (MAML), and its own step ends it. Where nothing ever steps, a backward without a forward of its own is the second
    derivative of the one before.
    """
    steps = [mark.event for mark in marks if mark.phase == "optimizer"]
    if steps:
        return [event for event in begins if event > steps[0]]
    forwards = [mark.event for mark in marks if mark.phase == "forward"]
    ends = [*begins[1:], marks[-1].event + 1] if begins else []
    own = [bisect_left(forwards, end) > bisect_left(forwards, at) for at, end in zip(begins, ends, strict=True)]
    return [event for event, mine in zip(begins, own, strict=True) if mine or not forwards]


def find_boundaries(facts: Facts, trace: Trace, annotations: Sequence[Annotation]) -> Boundaries:
    """First that is there: optimizer steps, profiler steps, zero_grad, a period of the events."""
    stepped = windows(annotations, trace.time_us, STEP_ANNOTATION, empty=True)
    if facts.steps:
        return Boundaries(_closing(facts, stepped), "Optimizer.step annotations")
    found = []
    for phase, source in ((OPTIMIZER, "optimizer frames"), (ZERO_GRAD, "zero_grad frames")):
        mine = facts.phases.phase == phase
        starts = distinct(facts.phases.run_start[mine], facts.events).tolist()
        ends = distinct(facts.phases.run_end[mine], facts.events).tolist()
        calls = [Window(first, last, "") for first, last in zip(starts, ends, strict=True)]
        found += [Boundaries(_closing(facts, calls), source)] if calls else []
    if found:
        return max(found, key=lambda each: len(each.events))  # a step that works in place leaves no events
    profiled = windows(annotations, trace.time_us, PROFILER_STEP)
    if profiled:
        return Boundaries(tuple(w.last for w in profiled), "profiler steps")
    period = find_period(trace, facts.phases.phase if facts.phases.told_by_stacks else None)
    return Boundaries(period, "repeating allocations") if period else Boundaries((), "none found")


def _callers(facts: Facts, calls: Sequence[Window]) -> list[tuple[str, int]]:
    """Which optimizer each is: those of one class have one name, and are told apart by the line that calls them."""
    lines = []
    for call in calls:
        inside = facts.callers[facts.trace.stack[call.first : call.last + 1]]
        lines.append(next((int(line) for line in inside if line >= 0), -1))
    by_name: dict[str, set[int]] = {}
    for call, line in zip(calls, lines, strict=True):
        by_name.setdefault(call.name, set()).add(line)
    only = {name: max(known) for name, known in by_name.items() if len(known - {-1}) <= 1}
    return [(call.name, only.get(call.name, line)) for call, line in zip(calls, lines, strict=True)]


def _closing(facts: Facts, calls: Sequence[Window]) -> tuple[int, ...]:
    """Last events of the calls that close a round.

    Of several optimizers (a GAN's) the one that steps most often, the last in the round. Calls with no forward between
    them (a list of optimizers; one in each gradient's hook) are one.
    """
    steps: list[tuple[tuple[str, int], int]] = []
    for optimizer, call in zip(_callers(facts, calls), calls, strict=True):
        if steps and steps[-1][0] == optimizer and facts.backwards[steps[-1][1]] == facts.backwards[call.first]:
            steps.pop()
        steps.append((optimizer, call.last))
    rounds = Counter(optimizer for optimizer, _ in steps)
    most = max(rounds.values())
    closing = [optimizer for optimizer in dict.fromkeys(o for o, _ in steps) if rounds[optimizer] == most][-1]
    return tuple(last for optimizer, last in steps if optimizer == closing)


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
