"""The Pareto front of a plan, and, where nothing fits, what would: another card, more GPUs, and what is left over."""

from collections.abc import Sequence
from dataclasses import replace

from ..configs.loader import gpus
from ..diagnosers.interface import CATEGORIES
from ..diagnosers.text import size
from .estimating import Case
from .evaluating import Evaluated, evaluate
from .fsdp import settings as shardings
from .interface import Candidate, NotApplicable, Numerics, Setting

MOST_RANKS = 1024
LARGEST_SHARES = 3


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Each with `pareto` set: no other needs less memory without taking more time or changing more of the numbers."""
    keys = [_costs(each) for each in candidates]
    return [
        replace(
            each,
            pareto=not any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for other in keys),
        )
        for each, mine in zip(candidates, keys, strict=True)
    ]


def _costs(candidate: Candidate) -> tuple[int, float, int]:
    estimate, seen = candidate.estimate, candidate.verified
    known = seen is not None and seen.error is None
    peak = seen.peak_bytes if seen is not None and known else estimate.predicted_peak_bytes.expected
    return peak, round(estimate.step_time_factor.expected, 3), list(Numerics).index(estimate.numerics)


def way_out(case: Case, evaluated: Sequence[Evaluated], *, may_shard: bool) -> tuple[str, ...]:
    """Sentences, for a plan in which nothing fits."""
    capacity = case.job.capacity_bytes
    if capacity is None or not evaluated:
        return ()
    best = _closest(evaluated)
    need = best.estimate.predicted_peak_bytes.high
    names = " + ".join(setting.name for setting in best.estimate.settings)
    found = [f"{names} comes closest: up to {size(need)}, {size(need - capacity)} more than there is; {_rest(best)}"]
    card = _card(need, capacity)
    found.append(f"{card} would hold it" if card else f"no card of gpus.yaml holds {size(need)}")
    same = _closest([each for each in evaluated if each.estimate.numerics is not Numerics.CHANGED] or evaluated)
    more = _more_ranks(case, same) if may_shard else None
    if more:
        found.append(more)
    return tuple(found)


def _closest(evaluated: Sequence[Evaluated]) -> Evaluated:
    return min(evaluated, key=lambda each: each.estimate.predicted_peak_bytes.high)


def _rest(best: Evaluated) -> str:
    """What its peak is made of, the largest first."""
    timeline = best.timeline
    peak = timeline.peak()
    alive = (timeline.birth <= peak.time) & (timeline.death > peak.time)
    held = {name: int(timeline.size[alive & (timeline.category == i)].sum()) for i, name in enumerate(CATEGORIES)}
    largest = sorted(held.items(), key=lambda each: -each[1])[:LARGEST_SHARES]
    parts = (f"{name.replace('_', ' ')} {size(n)}" for name, n in largest if n)
    return f"what is left at its peak: {', '.join(parts)}"


def _card(need: int, capacity: int) -> str | None:
    """The smallest card that holds `need` beside its context, among those larger than `capacity`."""
    rooms = sorted((card.total_bytes - card.context_bytes, name) for name, card in gpus().items())
    return next((f"{name} ({size(room)} free)" for room, name in rooms if room >= need and room > capacity), None)


def _more_ranks(case: Case, best: Evaluated) -> str | None:
    """The fewest GPUs over which sharding, with the other changes of the best plan, makes it fit."""
    others = [setting for setting in best.estimate.settings if setting.name != "fsdp"]
    ranks = max(2, case.job.world_size * 2)
    while ranks <= MOST_RANKS:
        nodes = max(case.job.nnodes, -(-ranks // 8))
        wider = replace(case, job=replace(case.job, world_size=ranks, nnodes=nodes))
        found = next(iter(_given(shardings(wider))), None)
        if found is None:
            return None
        result = evaluate(wider, [*others, found], cut=False)
        if result is not None and result.fits:
            together = " + ".join([*(s.name for s in others), found.name])
            return (
                f"{ranks} GPUs like this one with {together} would do: "
                f"{size(result.estimate.predicted_peak_bytes.high)} each at most"
            )
        ranks *= 2
    return f"sharding over up to {MOST_RANKS} GPUs does not make it fit either"


def _given(found: tuple[Setting, ...] | NotApplicable) -> tuple[Setting, ...]:
    return () if isinstance(found, NotApplicable) else found
