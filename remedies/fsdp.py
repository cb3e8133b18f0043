"""Shard parameters, gradients and optimizer state over the ranks (FSDP2, ZeRO-3); each rank takes its part of a batch.

Applies when: there is more than one GPU, and parameters, gradients and optimizer state are a large share of the peak.
Saves: of each of them all but 1/N; activations as well, because a batch is shared by the ranks. One or two blocks are
whole at a time: gathered before they run, their gradients reduced after. `reshard_after_forward: false` (ZeRO-2)
keeps gathered parameters until backward.
Costs: an all-gather of the parameters in forward and one in backward, a reduce-scatter of the gradients: 1.5 times
the traffic of data parallel training (measured: x 1.02 of a step on 8 A100 with NVLink, x 2.5 on 2 GPUs over PCIe).
Numerics: identical up to the order of sums.
Conflicts: one unit without a wrap policy gathers the whole model at once; accumulation without synchronising keeps
whole gradients; the model is whole on the card before it is sharded, unless the script builds it on `meta`.
Frameworks: torch.distributed.fsdp.fully_shard; Hugging Face `fsdp: full_shard auto_wrap`; DeepSpeed ZeRO stage 3.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .batch_scaling import with_batch
from .costs.sharding import fsdp_factor
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .passes import BlockPass, Iteration, block_passes, is_training, iterations, saved_rows
from .whatif_timeline import BACKWARD, FORWARD, OPTIMIZER, OTHER, SETUP, Mask, Timeline

NAME = "fsdp"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES
TIME_DOUBT = "from gathers all hidden behind computation, but the first, to none hidden"


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    if case.job.world_size < 2:
        return NotApplicable(NAME, "one GPU: give --nproc-per-node (and --nnodes) for what sharding would bring")
    if not case.facts.known:
        return NotApplicable(
            NAME, "the snapshot does not say which modules the model repeats: record it with `oomdoc run`"
        )
    if case.facts.sharded:
        return NotApplicable(NAME, "the parameters are sharded already")
    wrap = list(case.facts.block_classes)
    if not wrap:
        return NotApplicable(NAME, "the model has no repeated blocks to wrap: one unit would gather it whole")
    return tuple(Setting(name=NAME, options={"wrap": wrap, "reshard_after_forward": r}) for r in (True, False))


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    ranks, reshard = case.job.world_size, bool(options.get("reshard_after_forward", True))
    names = tuple(options.get("wrap") or case.facts.block_classes)
    new = sharded(case, names, over=ranks, reshard=reshard)
    if isinstance(new, NotApplicable):
        return NotApplicable(NAME, new.reason)
    held = case.facts.parameter_bytes
    state = sum(each.state_bytes for each in case.facts.optimizers)
    return Change(
        setting=Setting(name=NAME, options={"wrap": list(names), "reshard_after_forward": reshard}),
        expected=new,
        low=None,
        high=None,
        step_time_factor=fsdp_factor(case, reshard_after_forward=reshard),
        numerics=NUMERICS,
        why=(
            f"each of {ranks} ranks keeps 1/{ranks} of {size(2 * held + state)} of parameters, gradients "
            f"and "
            f"optimizer state, and of the batch; one block ({', '.join(names)}) is whole at a time"
        ),
        doubt="when gathered parameters are given back depends on how far the host runs ahead",
        time_doubt=TIME_DOUBT,
    )


def sharded(case: Case, names: tuple[str, ...], *, over: int, reshard: bool) -> Timeline | NotApplicable:
    """Parameters, gradients and optimizer state over `over` ranks, the batch over all; blocks of `names` gathered."""
    paths = [path for path in case.facts.blocks if case.facts.class_of.get(path) in names]
    if over < 2 or not paths:
        return NotApplicable(NAME, "needs at least two ranks and blocks to wrap")
    timeline = case.timeline
    persistent = timeline.is_category(Category.GRADIENT, Category.OPTIMIZER_STATE)
    persistent |= timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
    shared = with_batch(timeline, share_of_batch(case), case.job.gpu).resized(persistent, 1 / over)
    new = _sharded_parameters(shared, timeline, over)
    passes = [p for p in block_passes(timeline, paths) if is_training(p.iteration, timeline)]
    reduced = np.zeros(len(new), np.bool_)
    for iteration in iterations(timeline):
        mine = [p for p in passes if p.iteration == iteration]
        new = gathered(new, timeline, mine, iteration, case, reshard)
        for rows, end in _units(timeline, mine, iteration):
            reduced[rows] = True
            new = _reduced(new, timeline, rows, end, over)
    return new.without(np.append(reduced, np.zeros(len(new) - len(reduced), np.bool_)))


def _units(
    timeline: Timeline, passes: list[BlockPass], iteration: Iteration
) -> Iterator[tuple[NDArray[np.intp], float]]:
    """The gradients of each unit in one backward, and when that unit's backward has ended: blocks, then the root."""
    made = timeline.is_category(Category.GRADIENT)
    made &= (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end)
    ends = ends_of_backward(timeline, passes, iteration)
    for i, block in enumerate(passes):
        mine = made & timeline.under(block.path)
        made &= ~mine
        yield np.flatnonzero(mine), ends[i]
    if passes:
        yield np.flatnonzero(made), iteration.end + 0.5


def _reduced(new: Timeline, timeline: Timeline, rows: NDArray[np.intp], end: float, over: int) -> Timeline:
    """This rank's part of a unit's gradients: one tensor, which the reduce-scatter at the end of the unit makes."""
    if not len(rows):
        return new
    size = -(-int(timeline.size[rows].sum()) // over)
    span = (size, end - 0.38, float(timeline.death[rows].max()))
    return new.added([span], category=Category.GRADIENT, phase=BACKWARD)


def share_of_batch(case: Case) -> float:
    """What one rank gets of the batch that one rank had in the recording."""
    recording = case.profile.snapshot.recording
    ratio = case.job.world_size / max(1, recording.world_size if recording is not None else 1)
    batch = case.job.batch_size or case.facts.loader_batch_size
    return 1 / ratio if batch is None else math.ceil(batch / ratio) / batch


def _sharded_parameters(new: Timeline, timeline: Timeline, ranks: int) -> Timeline:
    """Parameters are whole until the first forward; from there on this rank's shard is."""
    parameter: Mask = timeline.is_category(Category.PARAMETER)
    first = next((each.start for each in iterations(timeline)), 0.0)
    rows = np.flatnonzero(parameter & (timeline.birth < first) & (timeline.death > first))
    death = new.death.copy()
    order = np.argsort(timeline.birth[rows], kind="stable")
    moments: NDArray[np.float64] = first - 0.9 + 0.8 * np.argsort(order) / max(1, len(rows))
    death[rows] = moments + 1e-4
    whole = new.with_death(death)
    sizes = np.maximum(1, -(-timeline.size[rows] // ranks))
    return whole.joined(timeline.copies(rows, birth=moments, death=timeline.death[rows], size=sizes, phase=SETUP))


def gathered(
    new: Timeline, timeline: Timeline, passes: list[BlockPass], iteration: Iteration, case: Case, reshard: bool
) -> Timeline:
    """What FSDP2 holds whole, in the order of its own allocations (torch.distributed.fsdp, traced).

    Forward of a block: the gather's flat buffer, the parameters copied out of it, then the previous block's buffer
    goes. The parameters go when the block is done. Backward: the same, but the buffer of the block before it is
    gathered ahead (the last block's when backward comes to what the model returned); at the end the parameters go, the
    gradients are copied into the reduce-scatter's input, and that one goes at the end of the next block's backward.
    """
    if not passes:
        return new
    size = [case.facts.bytes_below(p.path) for p in passes]
    known = np.unique(timeline.size[timeline.is_category(Category.PARAMETER)])
    inside = [_pieces(case, p.path, known) for p in passes]
    root = _outside(case, [p.path for p in passes], known)
    ends = ends_of_backward(timeline, passes, iteration)
    forward = [(n, iteration.start, iteration.end) for n in root]
    for i, block in enumerate(passes):
        later = passes[i + 1].start if i + 1 < len(passes) else iteration.backward_start
        forward.append((size[i], block.start - 0.5, later - 0.3))
        until = min(block.end, later - 0.6) if reshard else ends[i] - 0.5
        forward += [(n, block.start - 0.4, until) for n in inside[i]]
    new = new.added(forward, category=Category.COMMUNICATION, phase=FORWARD, step=iteration.step)
    backward = [(sum(root), iteration.end - 0.2, iteration.end + 0.5)]
    for i, block in enumerate(passes):
        begin, end = block.backward_start, ends[i]
        if not np.isfinite(begin):
            continue
        if reshard:
            backward += [(n, begin - 0.3, end - 0.5) for n in inside[i]]
            if i + 1 == len(passes):
                backward.append((size[i], min(_root_begins(timeline, iteration), begin - 0.6), begin - 0.2))
            if i:
                backward.append((size[i - 1], begin - 0.1, passes[i - 1].backward_start - 0.2))
        after = ends[i - 1] if i else iteration.end + 1
        backward.append((size[i], end - 0.45, after - 0.47))
    new = new.added(backward, category=Category.COMMUNICATION, phase=BACKWARD, step=iteration.step)
    return new.joined(*(_whole(timeline, rows, end - 0.4) for rows, end in _units(timeline, passes, iteration)))


def _pieces(case: Case, path: str, known: NDArray[np.int64]) -> list[int]:
    """Bytes of each parameter below `path`: when gathered, each is an allocation of its own."""
    within = path + "."
    sizes = case.facts.parameter_bytes_of_module
    return [m for each, n in sizes.items() if each == path or each.startswith(within) for m in _two(n, known)]


def _outside(case: Case, paths: list[str], known: NDArray[np.int64]) -> list[int]:
    """The same for what is in none of these modules; what no module accounts for is one piece."""
    inside = tuple(f"{path}." for path in paths)
    sizes = case.facts.parameter_bytes_of_module
    found = [m for each, n in sizes.items() if not f"{each}.".startswith(inside) for m in _two(n, known)]
    return [*found, case.facts.parameter_bytes - sum(sizes.values())]


def _two(nbytes: int, known: NDArray[np.int64]) -> list[int]:
    """A module's bytes as its weight and its bias: two of the `known` sizes of parameters, where they add up to it."""
    if nbytes in known:
        return [nbytes]
    weights = known[(known < nbytes) & np.isin(nbytes - known, known)]
    return [int(weights[-1]), nbytes - int(weights[-1])] if len(weights) else [nbytes]


def _root_begins(timeline: Timeline, iteration: Iteration) -> float:
    """When backward comes to what the model returned: at once, where it returned the loss itself."""
    loss = saved_rows(timeline, iteration) & timeline.is_phase(FORWARD, OTHER)
    rows = np.flatnonzero(loss)
    if len(rows) and timeline.module[rows[timeline.birth[rows].argmax()]] >= 0:
        return iteration.backward_start - 0.5
    inside = timeline.birth[(timeline.birth >= iteration.backward_start) & (timeline.module >= 0)]
    return float(inside.min()) - 0.5 if len(inside) else iteration.backward_start - 0.5


def _whole(timeline: Timeline, rows: NDArray[np.intp], until: float) -> Timeline:
    """A unit's gradients before they are reduced: of full size, from their computation to the end of its backward."""
    birth = timeline.birth[rows]
    return timeline.copies(rows, birth=birth, death=np.maximum(until, birth + 0.1), category=Category.TEMPORARY)


def ends_of_backward(timeline: Timeline, passes: list[BlockPass], iteration: Iteration) -> list[float]:
    """The end of each block's backward: when another module makes something after it (the block before it, mostly)."""
    back = (timeline.birth >= iteration.backward_start) & (timeline.birth < iteration.end) & (timeline.module >= 0)
    found = []
    for i, block in enumerate(passes):
        end = passes[i - 1].backward_start if i else iteration.end
        mine = timeline.under(block.path)
        last = timeline.birth[back & mine & (timeline.birth < end)]
        if len(last):  # what lies between two stages, or before the first block, runs when the block is done
            others = timeline.birth[back & ~mine & (timeline.birth > last.max()) & (timeline.birth < end)]
            end = min(end, float(others.min(initial=np.inf)))
        found.append(end)
    return found
