"""What the job was doing at each event: forward, backward, optimizer, zero_grad or anything else.

From the stack of the event and from `Optimizer.step` annotations, which PyTorch's profiler hooks write for every
optimizer. Neighbouring events of one phase are joined to a run: "this backward", "this step".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Action, Annotation, Trace
from .signs import Sign
from .stacks import StackSigns

OTHER, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD = range(5)
NAMES = ("other", "forward", "backward", "optimizer", "zero_grad")

# Two events of one phase belong to one run when no more than this many events of other phases lie between them:
# another thread's or a hook's events interleave, a whole phase is longer.
MAX_GAP_EVENTS = 60
# Between allocations with and without Python frames, as a share of all: a backward is a long stretch without.
MAX_SWITCHES = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Columns of shape (events,). `run_start` and `run_end` are the first and last event of the run an event is in."""

    phase: NDArray[np.int8]
    run_start: NDArray[np.int64]
    run_end: NDArray[np.int64]
    python_stacks: bool  # the trace has Python frames
    native_stacks: bool  # and C++ frames
    ends_out_of_memory: bool = False
    told_by_stacks: bool = True  # else by the shape of the memory

    def at(self, event: int) -> int:
        """The phase that the job is in just after `event`: that of the event, or of the one before it."""
        return int(self.phase[event]) if 0 <= event < len(self.phase) else OTHER


@dataclass(frozen=True, slots=True)
class Window:
    """Events [first, last] between an annotation's START and END."""

    first: int
    last: int
    name: str


def windows(
    annotations: Sequence[Annotation], time_us: NDArray[np.int64], prefix: str, *, empty: bool = False
) -> tuple[Window, ...]:
    """Annotations whose name starts with `prefix`, as ranges of events; empty where events have no time.

    An annotation names the device that was current, which a process with several need not be using: all of them count.
    A range that the ring buffer cut off at one end keeps the other; one without events inside is left out, unless
    `empty` asks for it: it then ends before it starts.
    """
    if len(time_us) == 0 or int(time_us.max()) < 0:
        return ()
    opened: dict[str, int] = {}
    found: list[Window] = []
    for each in sorted(annotations, key=lambda a: a.time_us):
        if not each.name.startswith(prefix):
            continue
        if each.stage == "START":
            opened[each.name] = each.time_us
        elif each.stage == "END":
            start_us = opened.pop(each.name, -1)
            first = int(np.searchsorted(time_us, start_us, side="left"))
            last = int(np.searchsorted(time_us, each.time_us, side="right")) - 1
            if last >= first or (empty and last >= 0 and first < len(time_us)):
                found.append(Window(first, last, each.name))
    for name, start_us in opened.items():  # still open at the dump: an exception, such as the OOM, ended it
        first = int(np.searchsorted(time_us, start_us, side="left"))
        if first < len(time_us):
            found.append(Window(first, len(time_us) - 1, name))
    return tuple(sorted(found, key=lambda w: w.first))


def find_phases(trace: Trace, signs: StackSigns, steps: Sequence[Window] = ()) -> Phases:
    """The phase of every event, first match wins: optimizer, zero_grad, backward, forward, other."""
    events = len(trace)
    of_event = signs.of(trace.stack)
    memory = np.isin(trace.action, (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED))
    has_python = (of_event & Sign.PYTHON) != 0
    python_stacks = bool(has_python.any())
    phase = np.full(events, OTHER, np.int8)
    phase[(of_event & Sign.FORWARD) != 0] = FORWARD
    backward = (of_event & (Sign.ENGINE | Sign.BACKWARD_FUNCTION)) != 0
    if python_stacks and _frameless_is_backward(trace, has_python, of_event):
        backward |= memory & ~has_python
    phase[backward & ~_forward_of_a_function(of_event)] = BACKWARD
    phase[(of_event & Sign.ZERO_GRAD) != 0] = ZERO_GRAD
    phase[_of_optimizer(of_event, phase, steps)] = OPTIMIZER
    run_start, run_end = runs(phase, trace.action == Action.ALLOC, has_python)
    return Phases(
        phase=phase,
        run_start=run_start,
        run_end=run_end,
        python_stacks=python_stacks,
        native_stacks=bool(((of_event & Sign.NATIVE) != 0).any()),
        ends_out_of_memory=bool((trace.action == Action.OOM).any()),
    )


def _of_optimizer(of_event: NDArray[np.int64], phase: NDArray[np.int8], steps: Sequence[Window]) -> NDArray[np.bool_]:
    """Frames of an optimizer, and what lies in a step's window, but for the closure that some steps call."""
    own = (of_event & Sign.OPTIMIZER) != 0
    inside = np.zeros(len(phase), np.bool_)
    for window in steps:
        inside[window.first : window.last + 1] = True
    closure = ~own & np.isin(phase, (FORWARD, BACKWARD, ZERO_GRAD))
    result: NDArray[np.bool_] = own | (inside & ~closure)
    return result


def _forward_of_a_function(of_event: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A custom autograd function's forward also runs below function.py:apply, without the engine."""
    result: NDArray[np.bool_] = ((of_event & Sign.FORWARD) != 0) & ((of_event & Sign.ENGINE) == 0)
    return result


def _frameless_is_backward(trace: Trace, has_python: NDArray[np.bool_], of_event: NDArray[np.int64]) -> bool:
    """The engine's thread has no Python frame. True where that is the likely reason for frames to be missing.

    With C++ frames the engine names itself. With Python frames only, an allocation without any is backward's, unless
    frames are missing so often, and here and there, that the recorder left them out (torch_npu does on half of them).
    """
    allocs = trace.action == Action.ALLOC
    without = allocs & ~has_python
    if (of_event[without] != 0).any() or (trace.stack[without] >= 0).any():
        return True
    switches = np.count_nonzero(np.diff(has_python[allocs]))
    return bool(without.sum() <= 3 * (allocs & has_python).sum() or switches <= MAX_SWITCHES * allocs.sum())


def runs(
    phase: NDArray[np.int8], is_alloc: NDArray[np.bool_], has_python: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Joins neighbouring events of one phase; an allocation of another working phase ends a run.

    A forward also ends where the script allocates outside any module: the next batch, the loss.
    """
    events = len(phase)
    start = np.arange(events, dtype=np.int64)
    end = np.arange(events, dtype=np.int64)
    working = is_alloc & (phase != OTHER)
    for kind in (FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD):
        mine = np.flatnonzero(phase == kind)
        if not len(mine):
            continue
        foreign = working & (phase != kind)
        if kind == FORWARD:
            foreign |= is_alloc & has_python & (phase == OTHER)
        barriers = np.cumsum(foreign, dtype=np.int32)  # how many of them up to each event
        gap = np.diff(mine) - 1
        split = (gap > MAX_GAP_EVENTS) | (np.diff(barriers[mine]) > 0)
        first = np.concatenate(([0], np.flatnonzero(split) + 1))
        after = np.append(first[1:], len(mine))
        start[mine] = np.repeat(mine[first], after - first)
        end[mine] = np.repeat(mine[after - 1], after - first)
    return start, end


def run_starts(phases: Phases, kind: int) -> NDArray[np.intp]:
    """The first event of every run of `kind`, in order."""
    return distinct(phases.run_start[phases.phase == kind], len(phases.phase))


def distinct(numbers: NDArray[np.int64], events: int) -> NDArray[np.intp]:
    """The different ones of numbers of events, in order: without a sort, and without the import of masked arrays."""
    seen = np.zeros(events, np.bool_)
    seen[numbers] = True
    return np.flatnonzero(seen)
