"""Which candidates of a plan are shown, and under what heading: one that does not fit makes nothing fit."""

from collections.abc import Sequence

from ..remedies.interface import Candidate, Numerics, Plan
from .text import size


def heading(plan: Plan, *, out_of_memory: bool) -> str:
    """Over the table: what its rows are."""
    if not out_of_memory:
        return "What would save memory"
    if all_over(plan):
        return "Nothing tried makes it fit; closest:"
    return "What would make it fit"


def listed(plan: Plan) -> tuple[Candidate, ...]:
    """Without those that do not fit; where none does, all, the closest first."""
    able = tuple(each for each in plan.candidates if not each.is_over)
    return able or tuple(sorted(plan.candidates, key=_peak))


def shortened(rows: Sequence[Candidate], most: int) -> tuple[Candidate, ...]:
    """At most so many, in their order: the best, the fastest that keeps the training, one of each kind before a second.

    Five counts of micro-batches would else leave no room for another kind of change.
    """
    kept = [each for each in rows if each.estimate.numerics is not Numerics.CHANGED]
    fastest = sorted(kept, key=lambda each: each.estimate.step_time_factor.expected)[:1]
    kinds = {each.name: each for each in reversed(rows)}.values()
    wanted = [*rows[:1], *fastest, *(each for each in rows if each in kinds), *rows]
    chosen = list(dict.fromkeys(id(each) for each in wanted))[:most]
    return tuple(each for each in rows if id(each) in chosen)


def all_over(plan: Plan) -> bool:
    return bool(plan.candidates) and all(each.is_over for each in plan.candidates)


def _peak(candidate: Candidate) -> int:
    seen = candidate.verified
    return candidate.estimate.predicted_peak_bytes.expected if seen is None or seen.error else seen.peak_bytes


def verified(candidate: Candidate) -> str:
    """What the run with the change showed, or that there was none."""
    seen = candidate.verified
    if seen is None:
        word = {True: "fits", False: "over", None: "?"}[candidate.fits]
        return f"not run (predicted: {word})"
    if seen.error is not None:
        return "could not run"
    return f"{size(seen.peak_bytes)} {'fits' if seen.fits else 'over'}"
