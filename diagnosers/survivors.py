"""Which blocks outlive the step that made them: the material of leaks."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from .interface import Category, DeviceProfile, LiveBlock

# Made once or replaced in place by design: their survival is no sign of a leak.
PERMANENT = frozenset(
    {
        Category.PARAMETER,
        Category.BUFFER,
        Category.OPTIMIZER_STATE,
        Category.WORKSPACE,
        Category.COMMUNICATION,
        Category.KV_CACHE,
    }
)


MIN_TURNS = 3  # fewer do not tell growth from warm-up


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Blocks alive at the moment looked at, born in each complete step after the first."""

    blocks: dict[int, LiveBlock]  # by index into DeviceProfile.live, of all steps
    steps: tuple[int, ...]  # the steps that left something, oldest first
    bytes_per_step: int  # the median over those steps
    graph_blocks_per_step: int  # of activations that a graph keeps, in the median step


def complete_steps(profile: DeviceProfile) -> int:
    """How many steps ended before the moment looked at."""
    moment = profile.oom.event if profile.oom else profile.peak.event
    return sum(step.event <= moment for step in profile.steps)


def step_of(profile: DeviceProfile, event: int) -> int:
    """Index (0-based) of the recorded step that `event` is in; -1 = older than the recording."""
    if event < 0:
        return -1
    return bisect_left([step.event for step in profile.steps], event)


def growth(profile: DeviceProfile, live: dict[int, LiveBlock]) -> Growth | None:
    """What every complete step after the first has left behind, by stack; None where no stack did so.

    A stack counts when the blocks alive now come from each of those steps: a tensor that is kept only until the next
    step, a cache that fills once, and optimizer state that the first step makes do not. Where several optimizers take
    turns (a GAN's), from each step of one of them.
    """
    complete = complete_steps(profile)
    if complete < 3:
        return None
    ends = [step.event for step in profile.steps]
    by_stack: dict[int, dict[int, list[int]]] = {}
    for index, block in live.items():
        if block.category in PERMANENT or block.birth < 0 or block.stack < 0:
            continue
        if block.birth_phase == "backward" and block.category in (Category.GRADIENT, Category.TEMPORARY):
            continue  # gradients in a list: OOM002 tells them
        step = bisect_left(ends, block.birth)
        if step < complete:
            by_stack.setdefault(block.stack, {}).setdefault(step, []).append(index)
    wanted = next(
        (each for each in _turns(profile, complete) if any(each <= steps.keys() for steps in by_stack.values())), None
    )
    if wanted is None:
        return None
    kept = {stack: steps for stack, steps in by_stack.items() if wanted <= steps.keys()}
    per_step = [sum(live[i].requested_bytes for steps in kept.values() for i in steps[step]) for step in sorted(wanted)]
    return Growth(
        blocks={index: live[index] for steps in kept.values() for indices in steps.values() for index in indices},
        steps=tuple(profile.steps[step].step for step in sorted(wanted)),
        bytes_per_step=sorted(per_step)[len(per_step) // 2],
        graph_blocks_per_step=_median_graph_blocks(kept, live, wanted),
    )


def _turns(profile: DeviceProfile, complete: int) -> list[set[int]]:
    """Every complete step after the first; and every n-th where n optimizers are at work, in three turns at least."""
    recording = profile.snapshot.recording
    optimizers = recording.facts.get("optimizers") if recording is not None else None
    number = len(optimizers) if isinstance(optimizers, Sequence) else 1
    turns = [set(range(first, complete, number)) for first in range(number)] if number > 1 else []
    return [set(range(1, complete)), *(turn for turn in turns if len(turn) >= MIN_TURNS)]


def _median_graph_blocks(kept: dict[int, dict[int, list[int]]], live: dict[int, LiveBlock], wanted: set[int]) -> int:
    """Activations of a forward; and of a backward that made a graph itself (`create_graph`)."""

    def is_graph(index: int) -> bool:
        return live[index].category is Category.ACTIVATION and live[index].birth_phase in ("forward", "backward")

    counts = sorted(sum(is_graph(i) for steps in kept.values() for i in steps[step]) for step in wanted)
    return counts[len(counts) // 2]
