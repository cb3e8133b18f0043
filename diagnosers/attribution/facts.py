"""What is known of each allocation, as columns, before any rule judges it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import DeviceSnapshot, Snapshot
from ...snapshots.timeline import Lifetimes, lifetimes
from .phases import BACKWARD, FORWARD, OPTIMIZER, OTHER, Phases, Window, find_phases, run_starts, windows
from .stacks import StackSigns, innermost_lines, read_stacks

STEP_ANNOTATION = "Optimizer.step#"


class BlockFacts(NamedTuple):
    """One allocation, as a rule sees it."""

    size: int  # requested bytes
    signs: int  # of the stack that made it
    free_signs: int  # of the stack that dropped it
    birth_phase: int
    death_phase: int  # meaningless where never_freed
    older: bool  # born before the recording
    never_freed: bool
    outlives_run: bool  # lives beyond the forward, backward or step it was born in
    run_cut: bool  # the recording ends inside that run
    spans_a_phase: bool  # a whole forward, backward or step lies inside its life
    meets_backward: bool  # alive when the next backward starts
    after_forward: bool  # the phase before its birth was a forward
    feeds_forward: bool  # made before a forward by a line that does so in every round, gone before the next but one
    before_backward: bool  # the phase after its birth is a backward, or the recording ends before any
    framed: bool  # has a stack at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Columns of shape (allocations,), one row per allocation of the device."""

    lives: Lifetimes
    phases: Phases
    steps: tuple[Window, ...]  # Optimizer.step annotations
    events: int
    requested: NDArray[np.int64]
    signs: NDArray[np.int64]
    free_signs: NDArray[np.int64]
    birth_phase: NDArray[np.int8]
    death_phase: NDArray[np.int8]
    older: NDArray[np.bool_]
    never_freed: NDArray[np.bool_]
    outlives_run: NDArray[np.bool_]
    run_cut: NDArray[np.bool_]
    run: NDArray[np.int64]  # first event of the run of its birth, -1 for older ones
    spans_a_phase: NDArray[np.bool_]
    meets_backward: NDArray[np.bool_]
    after_forward: NDArray[np.bool_]
    feeds_forward: NDArray[np.bool_]
    before_backward: NDArray[np.bool_]
    stack_signs: StackSigns
    lines: NDArray[np.int64]  # by stack: the innermost Python line, as a number; -1 = none

    def of(self, row: int) -> BlockFacts:
        return BlockFacts(
            int(self.requested[row]),
            int(self.signs[row]),
            int(self.free_signs[row]),
            int(self.birth_phase[row]),
            int(self.death_phase[row]),
            bool(self.older[row]),
            bool(self.never_freed[row]),
            bool(self.outlives_run[row]),
            bool(self.run_cut[row]),
            bool(self.spans_a_phase[row]),
            bool(self.meets_backward[row]),
            bool(self.after_forward[row]),
            bool(self.feeds_forward[row]),
            bool(self.before_backward[row]),
            int(self.lives.alloc_stack[row]) >= 0,
        )


_latest: list[tuple[Snapshot, DeviceSnapshot, Facts]] = []


def gather(snapshot: Snapshot, device: DeviceSnapshot) -> Facts:
    """The facts of every allocation of one device; those of the device asked for last are kept for the causes."""
    if not (_latest and _latest[0][0] is snapshot and _latest[0][1] is device):
        _latest[:] = [(snapshot, device, _gather(snapshot, device))]
    return _latest[0][2]


def _gather(snapshot: Snapshot, device: DeviceSnapshot) -> Facts:
    trace = device.trace
    signs = read_stacks(snapshot.stacks)
    steps = windows(snapshot.annotations, trace.time_us, STEP_ANNOTATION)
    phases = find_phases(trace, signs, steps)
    lives = lifetimes(device)
    return _columns(lives, phases, signs, steps, len(trace), innermost_lines(snapshot.stacks))


def _columns(
    lives: Lifetimes,
    phases: Phases,
    signs: StackSigns,
    steps: tuple[Window, ...],
    events: int,
    lines: NDArray[np.int64],
) -> Facts:
    birth, death = lives.birth, lives.death
    older = birth < 0
    never = death >= events
    at_birth = np.where(older, 0, birth)
    free_event = np.where(lives.free_requested < events, lives.free_requested, 0)
    nothing = events == 0
    phase = np.zeros(1, np.int8) if nothing else phases.phase
    run_start = np.zeros(1, np.int64) if nothing else phases.run_start
    run_end = np.zeros(1, np.int64) if nothing else phases.run_end
    birth_phase = np.where(older, OTHER, phase[at_birth]).astype(np.int8)
    run = np.where(older, -1, run_start[at_birth])
    end_of_run = np.where(older, -1, run_end[at_birth])
    last_work = _last_work(phases, events)
    cut = ~older & (birth_phase != OTHER) & (end_of_run >= last_work) & _ends_inside(phases, events)
    starts, ends = _phase_runs(phases)
    next_run = np.searchsorted(starts, birth, side="right")
    spans = np.zeros(len(birth), bool)
    if len(starts):
        known = next_run < len(starts)
        spans[known] = death[known] > ends[np.minimum(next_run, len(starts) - 1)][known]
    return Facts(
        lives=lives,
        phases=phases,
        steps=steps,
        events=events,
        requested=lives.requested,
        signs=signs.of(lives.alloc_stack),
        free_signs=signs.of(lives.free_stack),
        birth_phase=birth_phase,
        death_phase=phase[free_event].astype(np.int8),
        older=older,
        never_freed=never,
        outlives_run=~older & (np.where(never, events, lives.free_requested) > end_of_run),
        run_cut=cut,
        run=run,
        spans_a_phase=spans,
        meets_backward=_meets(phases, birth, death, BACKWARD),
        after_forward=_preceded_by(phases, birth, FORWARD),
        feeds_forward=_feeds_forward(phases, lives, birth_phase),
        before_backward=_followed_by(phases, birth, BACKWARD),
        stack_signs=signs,
        lines=lines,
    )


def _phase_runs(phases: Phases) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and last events of every forward, backward and step run, by first event; nested starts once."""
    mine = np.isin(phases.phase, (FORWARD, BACKWARD, OPTIMIZER))
    starts, index = np.unique(phases.run_start[mine], return_index=True)
    ends = phases.run_end[mine][index]
    return starts, ends


def _meets(phases: Phases, birth: NDArray[np.int64], death: NDArray[np.int64], kind: int) -> NDArray[np.bool_]:
    """Whether the next run of `kind` after the birth starts while the block is alive."""
    starts = run_starts(phases, kind)
    if not len(starts):
        return np.zeros(len(birth), bool)
    following = np.searchsorted(starts, birth, side="right")
    known = following < len(starts)
    result = np.zeros(len(birth), bool)
    result[known] = death[known] > starts[np.minimum(following, len(starts) - 1)][known]
    return result


def _preceded_by(phases: Phases, birth: NDArray[np.int64], kind: int) -> NDArray[np.bool_]:
    """Whether the last forward, backward or step event before the birth was of `kind`."""
    working = np.flatnonzero(np.isin(phases.phase, (FORWARD, BACKWARD, OPTIMIZER)))
    if not len(working):
        return np.zeros(len(birth), bool)
    before = np.searchsorted(working, birth, side="left") - 1
    result: NDArray[np.bool_] = (before >= 0) & (phases.phase[working[np.maximum(before, 0)]] == kind)
    return result


def _followed_by(phases: Phases, birth: NDArray[np.int64], kind: int) -> NDArray[np.bool_]:
    """Whether the next forward, backward or step event after the birth is of `kind`.

    After the last of them it counts as followed where the recording has the kind at all, or ran out of memory before.
    """
    working = np.flatnonzero(np.isin(phases.phase, (FORWARD, BACKWARD, OPTIMIZER)))
    after = np.searchsorted(working, birth, side="right")
    result = np.full(len(birth), bool((phases.phase == kind).any()) or phases.ends_out_of_memory)
    known = after < len(working)
    result[known] = phases.phase[working[after[known]]] == kind
    return result


def _feeds_forward(phases: Phases, lives: Lifetimes, birth_phase: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Blocks of no phase that the next forward finds alive, where the same stack made such a block for another one.

    A batch is dropped before the forward after the next: what lives longer is kept for something else.
    """
    meets = _meets(phases, lives.birth, lives.death, FORWARD) & _followed_by(phases, lives.birth, FORWARD)
    mine = np.flatnonzero(meets & (birth_phase == OTHER) & (lives.birth >= 0) & (lives.alloc_stack >= 0))
    result = np.zeros(len(lives), bool)
    if not len(mine):
        return result
    starts = run_starts(phases, FORWARD)
    following = np.searchsorted(starts, lives.birth[mine], side="right")
    pairs = np.unique(np.stack([lives.alloc_stack[mine].astype(np.int64), following], axis=1), axis=0)
    stacks, rounds = np.unique(pairs[:, 0], return_counts=True)
    ends = np.append(starts, np.iinfo(np.int64).max)[np.minimum(following + 2, len(starts))]
    result[mine] = np.isin(lives.alloc_stack[mine], stacks[rounds > 1]) & (lives.free_requested[mine] < ends)
    return result


def _last_work(phases: Phases, events: int) -> int:
    working = np.flatnonzero(phases.phase != OTHER)
    return int(working[-1]) if len(working) else events


def _ends_inside(phases: Phases, events: int) -> bool:
    """The recording stops within a run: nothing of another phase follows its last working event."""
    return events > 0 and _last_work(phases, events) >= events - 2


def older_in_flight(facts: Facts, first_events: int = 10) -> NDArray[np.bool_]:
    """Temporaries of a step or backward that the recording cut into: freed within its first events."""
    if not facts.events or facts.phases.at(0) not in (OPTIMIZER, BACKWARD):
        return np.zeros(len(facts.older), bool)
    result: NDArray[np.bool_] = facts.older & (facts.lives.free_requested < first_events)
    return result
