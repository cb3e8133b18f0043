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
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .batch_scaling import with_batch
from .costs.sharding import fsdp_factor
from .estimating import Case, Change
from .interface import NotApplicable, Numerics, Setting
from .passes import BlockPass, Iteration, block_passes, is_training, iterations
from .whatif_timeline import BACKWARD, FORWARD, OPTIMIZER, SETUP, Mask, Timeline

NAME = "fsdp"
NUMERICS = Numerics.IDENTICAL
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
    shared = with_batch(timeline, share_of_batch(case)).resized(persistent, 1 / over)
    new = _sharded_parameters(shared, timeline, over)
    passes = [p for p in block_passes(timeline, paths) if is_training(p.iteration, timeline)]
    for iteration in iterations(timeline):
        new = gathered(new, timeline, [p for p in passes if p.iteration == iteration], iteration, case, reshard)
    return new


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
    whole = new.copies(np.arange(len(new)), birth=new.birth, death=death)
    sizes = np.maximum(1, -(-timeline.size[rows] // ranks))
    return whole.joined(timeline.copies(rows, birth=moments, death=timeline.death[rows], size=sizes, phase=SETUP))


def gathered(
    new: Timeline, timeline: Timeline, passes: list[BlockPass], iteration: Iteration, case: Case, reshard: bool
) -> Timeline:
    """What FSDP2 holds whole, in the order of its own allocations (torch.distributed.fsdp, traced).

    Forward of a block: the gather's flat buffer, the parameters copied out of it, then the previous block's buffer
    goes. The parameters go when the block is done. Backward: the same, but the buffer of the block before it is
    gathered ahead; at the end the parameters go, the gradients are copied into the reduce-scatter's input, and that
    one goes at the end of the next block's backward.
    """
    if not passes:
        return new
    size = [case.facts.bytes_below(p.path) for p in passes]
    root = case.facts.parameter_bytes - sum(size)
    forward = [(root, iteration.start, iteration.end)]
    for i, block in enumerate(passes):
        later = passes[i + 1].start if i + 1 < len(passes) else iteration.backward_start
        forward.append((size[i], block.start - 0.5, later - 0.3))
        forward.append((size[i], block.start - 0.4, block.end if reshard else _end(passes, i, iteration) - 0.5))
    new = new.added(forward, category=Category.COMMUNICATION, phase=FORWARD, step=iteration.step)
    backward = [(root, iteration.end - 0.2, iteration.end + 0.5)]
    for i, block in enumerate(passes):
        begin, end = block.backward_start, _end(passes, i, iteration)
        if not np.isfinite(begin):
            continue
        if reshard:
            backward.append((size[i], begin - 0.3, end - 0.5))
            if i + 1 == len(passes):
                backward.append((size[i], begin - 0.6, begin - 0.2))
            if i:
                backward.append((size[i - 1], begin - 0.1, end - 0.2))
        after = _end(passes, i - 1, iteration) if i else iteration.end + 1
        backward.append((size[i], end - 0.45, after - 0.47))
    new = new.added(backward, category=Category.COMMUNICATION, phase=BACKWARD, step=iteration.step)
    return new.joined(*(_whole_gradients(timeline, p, _end(passes, i, iteration) - 0.4) for i, p in enumerate(passes)))


def _whole_gradients(timeline: Timeline, block: BlockPass, until: float) -> Timeline:
    """A block's gradients before they are reduced: of full size, from their computation to the end of its backward."""
    rows = timeline.is_category(Category.GRADIENT) & timeline.under(block.path)
    rows &= (timeline.birth >= block.iteration.backward_start) & (timeline.birth < block.iteration.end)
    found = np.flatnonzero(rows)
    birth = timeline.birth[found]
    return timeline.copies(found, birth=birth, death=np.maximum(until, birth + 0.1), category=Category.TEMPORARY)


def _end(passes: list[BlockPass], index: int, iteration: Iteration) -> float:
    """The end of a block's backward: when the block before it (in the model) begins its own."""
    return passes[index - 1].backward_start if index else iteration.end
