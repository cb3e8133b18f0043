"""From counted phases and roles to the events of a device: what `role_log` kept, as a `DeviceRecording`.

The counters of a device and its trace end at the same event, so allocation number n of the counter is the n-th from
the end of the trace. A role is taken only where an allocation at its address was alive at that moment: counters that do
not fit the trace make roles disappear, never move.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..snapshots.model import Action, DeviceRecording, DeviceSnapshot, Mark, Stacks
from ..snapshots.timeline import Lifetimes, lifetimes
from .accelerator import Counted
from .categories import (
    ACTIVATION,
    COMMUNICATION,
    RANK,
    TEMPORARY,
    WEAKER_THAN_COMMUNICATION,
    asked_by_collective,
)
from .role_log import PHASES, RECOMPUTE, DeviceLog

_PHASE_CATEGORY = {"forward": ACTIVATION, RECOMPUTE: ACTIVATION, "backward": TEMPORARY, "optimizer": TEMPORARY}
OTHER = PHASES.index("other")
_BACKWARDS = (PHASES.index("backward"), PHASES.index(RECOMPUTE))
MOST_DOUBTFUL = 0.02  # share of roles whose address had no live allocation: more, and the counters do not fit


@dataclass(frozen=True, slots=True)
class Placed:
    recording: DeviceRecording
    problem: str | None  # why marks and roles are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambiguous:
    """Sizes of allocations in a forward that the phase alone does not explain: cuBLAS workspaces, casts of weights."""

    sizes: frozenset[int] = frozenset()


def place(
    device: DeviceSnapshot,
    log: DeviceLog,
    counted: Counted,
    modules: NDArray[np.int32],
    stacks: Stacks,
    odd: Ambiguous,
    *,
    by_request: bool = False,
) -> Placed:
    """`counted` was read with the snapshot; `modules` has shape (events,), -1 = not known.

    With `by_request` a request (an outermost forward) is a step: a job that serves never makes another.
    """
    events = len(device.trace)
    category = np.full(events, -1, np.int8)
    older: dict[int, int] = {}
    problem = "the script reset the memory counters: what came before cannot be placed" if log.restarted else None
    allocs = np.flatnonzero(device.trace.action == Action.ALLOC)
    frees = np.flatnonzero(device.trace.action == Action.FREE_REQUESTED)
    gone_allocs, gone_frees = counted.allocations - len(allocs), counted.frees - len(frees)
    if gone_allocs < 0 or (gone_frees < 0 and not log.restarted):
        empty = DeviceRecording(category=category, module=modules, estimated=np.zeros(events, np.bool_))
        return Placed(empty, "the memory counters do not fit the trace: phases and roles were left out")
    at = _events(log, allocs, frees, gone_allocs, gone_frees)
    lives = lifetimes(device)
    doubtful = _roles(log, lives, allocs, gone_allocs, category, older, events)
    if doubtful > MOST_DOUBTFUL:
        problem = f"{100 * doubtful:.0f} % of the roles had no allocation at their moment and were left out"
    steps = log.request if by_request else log.step
    _phases(log, at, steps, lives, category, odd)
    for_collectives = np.array(asked_by_collective(stacks), np.bool_)[device.trace.stack]
    asked = for_collectives & (device.trace.action == Action.ALLOC) & np.isin(category, WEAKER_THAN_COMMUNICATION)
    category[asked] = COMMUNICATION
    recording = DeviceRecording(
        category=category,
        module=modules,
        estimated=np.zeros(events, np.bool_),
        marks=_marks(log, at, steps),
        category_by_address=older,
    )
    return Placed(recording, problem)


def _events(
    log: DeviceLog, allocs: NDArray[np.intp], frees: NDArray[np.intp], gone_allocs: int, gone_frees: int
) -> NDArray[np.int64]:
    """The event before which each change of phase came; 0 for those older than the trace."""
    by_alloc = _after(allocs, np.frombuffer(log.allocations, np.uint64).astype(np.int64) - gone_allocs)
    by_free = _after(frees, np.frombuffer(log.frees, np.uint64).astype(np.int64) - gone_frees)
    return np.maximum.accumulate(np.maximum(by_alloc, by_free)) if len(by_alloc) else by_alloc


def _after(rows: NDArray[np.intp], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """The event behind number-th of `rows` (from 1); 0 where that is before the trace."""
    found = np.concatenate([[0], rows + 1]).astype(np.int64)
    return found[np.clip(number, 0, len(rows))]


def _marks(log: DeviceLog, at: NDArray[np.int64], steps: "array[int]") -> tuple[Mark, ...]:
    marks = [Mark(event=0, step=1, phase="setup")]
    for event, step, code in zip(at.tolist(), steps, log.phase, strict=True):
        name = PHASES[code]
        mark = Mark(event=event, step=step, phase="backward" if name == RECOMPUTE else name)
        if marks[-1].event == event:
            marks.pop()
        if not marks or (marks[-1].step, marks[-1].phase) != (mark.step, mark.phase):
            marks.append(mark)
    return tuple(marks)


def _roles(
    log: DeviceLog,
    lives: Lifetimes,
    allocs: NDArray[np.intp],
    gone: int,
    category: NDArray[np.int8],
    older: dict[int, int],
    events: int,
) -> float:
    """Writes `category` and `older`; -> the share of roles within the trace that fit no allocation."""
    if not log.address:
        return 0.0
    address = np.frombuffer(log.address, np.uint64)
    role = np.frombuffer(log.category, np.int8)
    known_by = np.frombuffer(log.known_by, np.uint64).astype(np.int64) - gone
    moment = _after(allocs, known_by) - 1  # the last allocation before it
    order = np.lexsort((lives.birth, lives.address))
    keys = lives.address[order]
    doubtful = inside = 0
    first = np.searchsorted(keys, address, "left")
    last = np.searchsorted(keys, address, "right")
    births, deaths = lives.birth[order], lives.free_requested[order]
    for row in np.argsort(known_by, kind="stable").tolist():
        rows = slice(first[row], last[row])
        hit = int(np.searchsorted(births[rows], moment[row], "right")) - 1
        reached = known_by[row] > 0 or gone == 0
        inside += reached
        if hit < 0 or deaths[rows][hit] < moment[row]:
            doubtful += reached
            continue
        birth, value = int(births[rows][hit]), int(role[row])
        if birth >= 0:
            if RANK[value] > RANK[int(category[birth])]:
                category[birth] = value
        elif deaths[rows][hit] == events or not reached:
            key = int(address[row])
            if RANK[value] > RANK[older.get(key, -1)]:
                older[key] = value
    return doubtful / inside if inside else 0.0


def _phases(
    log: DeviceLog,
    at: NDArray[np.int64],
    steps: "array[int]",
    lives: Lifetimes,
    category: NDArray[np.int8],
    odd: Ambiguous,
) -> None:
    """What has no role is what its phase makes, if it also ended with its step or the next: an activation, a temporary.

    The next, because a loop's own names (the loss, the logits) are assigned anew there. What lives on is something else
    (a workspace, a cache, a leak), and left to be inferred. At the end of the trace nothing has lived on yet.
    """
    if not len(at):
        return
    step = np.frombuffer(steps, np.int64)
    codes = np.frombuffer(log.phase, np.int8)
    of_code = np.array([_PHASE_CATEGORY.get(name, -1) for name in PHASES], np.int8)
    born = np.flatnonzero(lives.birth >= 0)
    birth = lives.birth[born]
    born, birth = born[category[birth] < 0], birth[category[birth] < 0]
    change = np.searchsorted(at, birth, "right") - 1
    born, birth, change = born[change >= 0], birth[change >= 0], change[change >= 0]
    claimed = of_code[codes[change]]
    claimed[(codes[change] == OTHER) & _freed_in_backward(codes, at, lives.free_requested[born])] = ACTIVATION
    later = np.searchsorted(step, step[change] + 2, "left")  # steps are counted upwards
    ends = np.append(at, np.iinfo(np.int64).max)[later]
    fits = (claimed >= 0) & (lives.free_requested[born] <= ends)
    fits &= ~(np.isin(lives.requested[born], list(odd.sizes)) & (claimed == ACTIVATION)) if odd.sizes else True
    category[birth[fits]] = claimed[fits]


def _freed_in_backward(codes: NDArray[np.int8], at: NDArray[np.int64], freed: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Made between the phases (a loss outside any module) and dropped by backward: the graph had saved it."""
    change = np.searchsorted(at, freed, "right") - 1
    dropped: NDArray[np.bool_] = np.isin(codes[np.maximum(change, 0)], _BACKWARDS) & (change >= 0)
    return dropped


def modules_of(labels: Sequence[object], names: Sequence[str]) -> NDArray[np.int32]:
    """The module that each event's label names; -1 for other texts and for none."""
    known: dict[object, int] = {name: index for index, name in enumerate(names)}
    return np.fromiter((known.get(label, -1) for label in labels), np.int32, len(labels))
