"""What is known of each allocation, as columns, before any rule judges it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Action, DeviceSnapshot, Snapshot, Stacks, Trace
from ...snapshots.timeline import Lifetimes, lifetimes
from .phases import BACKWARD, FORWARD, OPTIMIZER, OTHER, Phases, Window, find_phases, run_starts, windows
from .shape import phases_by_shape
from .signs import Sign
from .stacks import StackSigns, innermost_lines, optimizer_names, places, read_stacks, step_callers

STEP_ANNOTATION = "Optimizer.step#"
MIN_SCRATCH_BYTES = 1 << 16  # less may be a scalar that was read, a counter, an index


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
    dies_in_its_backward: bool  # of which that run may be a part
    spans_a_phase: bool  # a whole forward, backward or step lies inside its life
    meets_backward: bool  # alive when the next backward starts
    after_forward: bool  # the phase before its birth was a forward
    feeds_forward: bool  # made before a forward by a line that does so in every round, gone before the next but one
    before_forward: bool  # the phase after its birth is a forward
    before_backward: bool  # the phase after its birth is a backward, or the recording ends before any
    framed: bool  # has a stack at all
    freed_where_born: bool  # the operator that made it dropped it
    scratch: bool  # dropped before anything else happens, in a job that convolves
    rounds: int  # backwards (else steps, else further forwards of one line) that begin in its life


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Columns of shape (allocations,), one row per allocation of the device."""

    lives: Lifetimes
    trace: Trace
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
    dies_in_its_backward: NDArray[np.bool_]
    run: NDArray[np.int64]  # first event of the run of its birth, -1 for older ones
    spans_a_phase: NDArray[np.bool_]
    meets_backward: NDArray[np.bool_]
    after_forward: NDArray[np.bool_]
    feeds_forward: NDArray[np.bool_]
    before_forward: NDArray[np.bool_]
    before_backward: NDArray[np.bool_]
    scratch: NDArray[np.bool_]
    rounds: NDArray[np.int64]
    backwards: NDArray[np.int64]  # by event: the number of the backward that it would belong to
    optimizers: frozenset[str]  # names of optimizers and their files, in lower case
    stack_signs: StackSigns
    replicated: bool  # a forward of DistributedDataParallel is on some stack
    lines: NDArray[np.int64]  # by stack: the innermost Python line, as a number; -1 = none
    callers: NDArray[
        np.int64
    ]  # by stack: the line that called step or zero_grad, as a number; -1 = none, also at index -1
    places: NDArray[np.int64]  # by stack: all of its Python lines, as a number; -1 = none, also at index -1
    calling: NDArray[np.int64]  # by such a number: that of the line that called it; -1 = none

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
            bool(self.dies_in_its_backward[row]),
            bool(self.spans_a_phase[row]),
            bool(self.meets_backward[row]),
            bool(self.after_forward[row]),
            bool(self.feeds_forward[row]),
            bool(self.before_forward[row]),
            bool(self.before_backward[row]),
            int(self.lives.alloc_stack[row]) >= 0,
            int(self.places[self.lives.alloc_stack[row]]) == int(self.places[self.lives.free_stack[row]]) >= 0,
            bool(self.scratch[row]),
            int(self.rounds[row]),
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
    lives = lifetimes(device)
    phases = find_phases(trace, signs, steps) if (trace.stack >= 0).any() else phases_by_shape(trace, lives, steps)
    optimizers = optimizer_names(snapshot.stacks) | {
        step.name.removeprefix(STEP_ANNOTATION).split(".")[0].lower() for step in steps
    }
    return _columns(lives, trace, phases, signs, steps, frozenset(optimizers), snapshot.stacks)


def _columns(
    lives: Lifetimes,
    trace: Trace,
    phases: Phases,
    signs: StackSigns,
    steps: tuple[Window, ...],
    optimizers: frozenset[str],
    stacks: Stacks,
) -> Facts:
    events = len(trace)
    backwards = _backwards(trace, phases)
    place, calling = places(stacks)
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
        trace=trace,
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
        dies_in_its_backward=_dies_in_its_backward(lives, backwards, birth_phase, phase[free_event]),
        run=run,
        spans_a_phase=spans,
        meets_backward=_meets(phases, birth, death, BACKWARD),
        after_forward=_preceded_by(phases, birth, FORWARD),
        feeds_forward=_feeds_forward(phases, lives, birth_phase, place),
        before_forward=_followed_by(phases, birth, FORWARD),
        before_backward=_followed_by(phases, birth, BACKWARD),
        scratch=_scratch(trace, lives, birth_phase, phases, signs),
        rounds=_rounds(trace, phases, backwards, birth, death),
        backwards=backwards,
        optimizers=optimizers,
        stack_signs=signs,
        replicated=bool((signs.signs & Sign.REPLICATED).any()),
        lines=innermost_lines(stacks),
        callers=step_callers(stacks),
        places=place,
        calling=calling,
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


def _feeds_forward(
    phases: Phases, lives: Lifetimes, birth_phase: NDArray[np.int8], place: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Blocks of no phase that the next forward finds alive, made by a stack that does so for every forward.

    That is seen where it made one for another forward too, or drops the one before (`x = next(batches)`). A batch is
    dropped before the forward after the next: what lives longer is kept for something else.
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
    made = place[lives.alloc_stack[mine]]
    replaces = (made >= 0) & np.isin(made, place[lives.free_stack[lives.birth < 0]])
    again = np.isin(lives.alloc_stack[mine], stacks[rounds > 1]) | replaces
    result[mine] = again & (lives.free_requested[mine] < ends)
    return result


def _backwards(trace: Trace, phases: Phases) -> NDArray[np.int64]:
    """One backward is all of its runs up to the next forward: a step or a hook within it splits it."""
    forward = (trace.action == Action.ALLOC) & np.isin(phases.phase, (FORWARD, OTHER))
    return np.cumsum(forward)


def _dies_in_its_backward(
    lives: Lifetimes, backwards: NDArray[np.int64], birth_phase: NDArray[np.int8], death_phase: NDArray[np.int8]
) -> NDArray[np.bool_]:
    mine: NDArray[np.bool_] = (birth_phase == BACKWARD) & (death_phase == BACKWARD)
    mine &= lives.free_requested < len(backwards)
    rows = np.flatnonzero(mine)
    mine[rows] = backwards[lives.birth[rows]] == backwards[lives.free_requested[rows]]
    return mine


def _scratch(
    trace: Trace, lives: Lifetimes, birth_phase: NDArray[np.int8], phases: Phases, signs: StackSigns
) -> NDArray[np.bool_]:
    """What is dropped before anything else happens, in a job that convolves.

    Without a stack forwards that make such blocks say that: an operation's result outlives the making of the next one,
    but what a library works with does not.
    """
    found = _freed_next(trace, lives)
    if phases.told_by_stacks:
        return found & bool((signs.signs & Sign.CONVOLUTION).any())
    found &= lives.requested >= MIN_SCRATCH_BYTES
    return found & bool((found & (birth_phase == FORWARD)).any())


def _freed_next(trace: Trace, lives: Lifetimes) -> NDArray[np.bool_]:
    """Whether no block is made or dropped between a block's birth and the loss of its last reference."""
    busy = np.cumsum(np.isin(trace.action, (Action.ALLOC, Action.FREE_REQUESTED)))
    freed = (lives.birth >= 0) & (lives.free_requested < len(trace))
    result = np.zeros(len(lives), np.bool_)
    result[freed] = busy[lives.free_requested[freed]] - busy[lives.birth[freed]] == 1
    return result


def _rounds(
    trace: Trace, phases: Phases, backwards: NDArray[np.int64], birth: NDArray[np.int64], death: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many iterations begin their backward in a block's life; without any, their step, or a further forward."""
    mine = np.flatnonzero(phases.phase == BACKWARD)
    starts = mine[np.diff(backwards[mine], prepend=-1) > 0] if len(mine) else run_starts(phases, OPTIMIZER)
    if not len(starts):
        starts = run_starts(phases, FORWARD)
        stacks = trace.stack[starts]
        starts = starts[stacks == np.bincount(stacks + 1).argmax() - 1][1:] if len(starts) else starts
    result: NDArray[np.int64] = np.searchsorted(starts, death, side="left") - np.searchsorted(
        starts, birth, side="right"
    )
    return result


def _last_work(phases: Phases, events: int) -> int:
    working = np.flatnonzero(phases.phase != OTHER)
    return int(working[-1]) if len(working) else events


def _ends_inside(phases: Phases, events: int) -> bool:
    """The recording stops within a run: nothing of another phase follows its last working event."""
    return events > 0 and _last_work(phases, events) >= events - 2


# Within so many events of a recording that begins in such a phase: a node of backward drops what it was given within
# the next few, and then come the blocks that the forward saved.
IN_FLIGHT_EVENTS = {OPTIMIZER: 10, BACKWARD: 4}


def older_in_flight(facts: Facts) -> NDArray[np.bool_]:
    """Temporaries of a step or backward that the recording cut into: freed within its first events.

    A step frees them until its end (foreach keeps a list of them), and leaves nothing of their size in their place, as
    it does for the moments of hand-written optimizers.
    """
    if not facts.events or facts.phases.at(0) not in IN_FLIGHT_EVENTS:
        return np.zeros(len(facts.older), bool)
    result: NDArray[np.bool_] = facts.older & (facts.lives.free_requested < IN_FLIGHT_EVENTS[facts.phases.at(0)])
    if facts.phases.at(0) == OPTIMIZER:
        end = int(facts.phases.run_end[0])
        replaced = facts.requested[(facts.run == facts.phases.run_start[0]) & facts.outlives_run]
        freed = facts.older & (facts.lives.free_requested <= end) & (facts.death_phase == OPTIMIZER)
        result |= freed & ~np.isin(facts.requested, replaced)
    return result
