"""Keep what the card does not need all the time in host memory: optimizer state, or saved activations.

Applies when: optimizer state (Adam: twice the parameters) or saved activations are a large share of the peak, and
the host has the room: as many bytes again, pinned.
Saves: `optimizer_state`: all of it but that of one parameter, and with it the temporaries of a multi-tensor step.
`activations`: every saved activation of at least `min_bytes`, from its last use in forward to its use in backward.
Costs: transfers over PCIe in every step: the state there and back, the activations there and back (measured: optimizer
offload +20 % of a step with overlap, x 2.46 untuned, ViT-giant; activation offload -0.1 % tokens/s when overlapped).
Numerics: identical: the arithmetic is done on the card, on the same bits.
Conflicts: host memory: pinned memory is not swapped and can end the process from outside. Not with LBFGS.
Frameworks: DeepSpeed `zero_optimization.offload_optimizer`; Hugging Face via a DeepSpeed config or `fsdp` with
`offload`; torch.autograd.graph.save_on_cpu for activations.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .costs.transfer import transfer_factor
from .estimating import Case, Change
from .interface import Effort, NotApplicable, Numerics, Setting
from .passes import Iteration, block_passes, for_backward, given_back, is_training, iterations, saved_rows
from .whatif_timeline import BACKWARD, FORWARD, OPTIMIZER, Timeline

NAME = "cpu-offload"
NUMERICS = Numerics.IDENTICAL
EFFORT = Effort.LINES
MIN_BYTES = 1 << 20


def settings(case: Case) -> tuple[Setting, ...] | NotApplicable:
    found = []
    if _state_bytes(case.timeline):
        found.append(Setting(name=NAME, options={"what": ["optimizer_state"]}))
    if any(_offloaded(case.timeline, each, MIN_BYTES).any() for each in _training(case.timeline)):
        found.append(Setting(name=NAME, options={"what": ["activations"]}))
    if not found:
        return NotApplicable(NAME, "no optimizer state and no saved activation of 1 MiB is in the trace")
    return tuple(found)


def change(case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
    what = tuple(options.get("what") or ("optimizer_state",))
    timeline, moved, parts = case.timeline, 0, []
    if "optimizer_state" in what:
        held = _state_bytes(timeline)
        if not held:
            return NotApplicable(NAME, "no optimizer state is in the trace")
        timeline = _without_state(timeline)
        moved += 2 * held
        parts.append(f"{size(held)} of optimizer state wait in host memory, one parameter's at a time is here")
    if "activations" in what:
        timeline, bytes_there = _without_activations(timeline, int(options.get("min_bytes", MIN_BYTES)), case)
        if not bytes_there:
            return NotApplicable(NAME, "no saved activation is large enough")
        moved += 2 * bytes_there
        parts.append(f"{size(bytes_there)} of saved activations go to the host and come back in backward")
    return Change(
        setting=Setting(name=NAME, options={"what": list(what)}),
        expected=timeline,
        low=None,
        high=None,
        step_time_factor=transfer_factor(case, moved, overlapped="optimizer_state" not in what),
        numerics=NUMERICS,
        why="; ".join(parts) + f"; {size(moved)} cross PCIe in a step{_together(case, moved // 2)}",
        time_doubt="from transfers hidden behind computation to pageable host memory and none hidden",
    )


def _together(case: Case, held: int) -> str:
    """The ranks of a node share its memory."""
    ranks = case.job.world_size // case.job.nnodes
    return f"; the {ranks} ranks of a host hold {size(ranks * held)} there" if ranks > 1 else ""


def _state_bytes(timeline: Timeline) -> int:
    """Optimizer state alive at the end of the trace, or at its highest."""
    rows = timeline.is_category(Category.OPTIMIZER_STATE)
    return timeline.take(np.flatnonzero(rows)).peak().bytes if rows.any() else 0


def _without_state(timeline: Timeline) -> Timeline:
    """State leaves; in each optimizer step, that of the largest parameter and its temporaries come and go."""
    state = timeline.is_category(Category.OPTIMIZER_STATE)
    held = _state_bytes(timeline)
    parameters = timeline.is_category(Category.PARAMETER)
    sizes = timeline.size[parameters]
    largest_share = (
        int(sizes.max()) / max(1, timeline.take(np.flatnonzero(parameters)).peak().bytes) if len(sizes) else 1.0
    )
    temporary = timeline.is_category(Category.TEMPORARY) & timeline.is_phase(OPTIMIZER)
    inside = timeline.take(np.flatnonzero(temporary)).peak().bytes if temporary.any() else 0
    new = timeline.without(state | temporary)
    runs = [run for run in timeline.runs if run.phase == OPTIMIZER]
    needed = int(held * largest_share) + int(inside * largest_share)
    spans = [(needed, run.start, run.end - 0.5) for run in runs]
    return new.added(spans, category=Category.OPTIMIZER_STATE, phase=OPTIMIZER)


def _training(timeline: Timeline) -> list[Iteration]:
    return [each for each in iterations(timeline) if is_training(each, timeline)]


def _offloaded(timeline: Timeline, iteration: Iteration, min_bytes: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    inputs = timeline.is_category(Category.INPUT) & for_backward(timeline, iteration)
    inputs &= (timeline.birth < iteration.backward_start) & (timeline.death > iteration.start)
    inside = saved_rows(timeline, iteration) & timeline.is_phase(FORWARD)
    return (inside | inputs) & (timeline.size >= min_bytes)


def _without_activations(timeline: Timeline, min_bytes: int, case: Case) -> tuple[Timeline, int]:
    """Saved activations are on the card until forward has used them, and again for their operation in backward.

    Used up: when the next two activations of the same kind are there (an operation and the one that reads it); what a
    block hands to the next, when that one is done.
    """
    death = timeline.death.copy()
    outputs = {p.output: p.end for p in block_passes(timeline, case.facts.blocks)}
    ends = sorted({p.end for p in block_passes(timeline, case.facts.blocks)})
    parts, most = [], 0
    for iteration in _training(timeline):
        rows = np.flatnonzero(_offloaded(timeline, iteration, min_bytes))
        rows = rows[np.argsort(timeline.birth[rows], kind="stable")]
        if not len(rows):
            continue
        most = max(most, int(timeline.size[rows].sum()))
        births = np.append(timeline.birth[rows], [iteration.backward_start] * 2)
        used = births[2 : len(rows) + 2]
        for index, row in enumerate(rows.tolist()):
            if row in outputs:
                following = next((end for end in ends if end > outputs[row]), iteration.backward_start)
                used[index] = max(used[index], min(following, iteration.backward_start))
        back = timeline.death[rows]
        freed = np.sort(np.unique(back))
        # an operation of backward asks for what it saved once the one before it has let go of its own
        earlier = np.searchsorted(freed, back) - 1
        returns = np.where(earlier >= 0, freed[np.maximum(earlier, 0)], iteration.backward_start) + 0.25
        sooner = np.maximum(given_back(timeline, back), returns + 0.1)
        parts.append(timeline.copies(rows, birth=returns, death=sooner, phase=BACKWARD))
        death[rows] = used
    moved = timeline.with_death(death)
    return moved.joined(*parts), most
