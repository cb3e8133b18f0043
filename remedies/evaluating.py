"""From settings to an estimate: their changes one after the other on the job's timeline, then its peak and its time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..allocator.config import AllocatorConfig
from ..diagnosers.interface import Category
from ..diagnosers.text import size
from .all_remedies import REMEDIES
from .estimating import Case, Change, band_of, product, replayed, worst
from .interface import ByteBand, Estimate, NotApplicable, Setting
from .passes import iterations
from .whatif_timeline import FORWARD, Timeline

# How far a rerun with the change may differ from the prediction, as a share of the peak: on the safe side of what
# tests/benchmarks/test_bench_predictions.py sees. Lifetimes are exact where a remedy only moves or shrinks what was
# recorded; types under autocast and the moment an offloaded activation returns are inferred.
MARGINS = {
    "activation-checkpointing": 0.03,
    "gradient-accumulation": 0.02,
    "fsdp": 0.05,
    "hsdp": 0.05,
    "mixed-precision": 0.08,
    "bf16-parameters": 0.08,
    "flash-attention": 0.06,
    "selective-checkpointing": 0.05,
    "tensor-parallel": 0.15,
    "pipeline-parallel": 0.15,
    "context-parallel": 0.10,
    "parameter-offload": 0.08,
    "zero-1": 0.05,
    "zero-2": 0.05,
    "qlora": 0.08,
    "lora": 0.05,
    "wrapping-policy": 0.08,
    "cpu-offload/optimizer_state": 0.01,
    "cpu-offload/activations": 0.06,
}
# No run with the change has been compared yet: their margins are assumed.
UNTRIED = frozenset({
    "pipeline-parallel", "nvme-offload", "length-bucketing", "limit-all-gathers",
    "qlora", "allocator-settings", "zero-2", "quantized-kv-cache",
})  # fmt: skip
MARGIN_OTHER = 0.02
MARGIN_INFERRED = 0.02  # more, where modules are read from frames
MARGIN_UNKNOWN = 0.08  # where nothing is known of them


@dataclass(frozen=True)
class Evaluated:
    changes: tuple[Change, ...]
    timeline: Timeline  # after all of them
    estimate: Estimate
    fits: bool | None
    reserved_bytes: int


def evaluate(case: Case, settings: Sequence[Setting], cut: bool) -> Evaluated | None:
    """None where one of the settings does not apply after those before it. `cut`: the recording ends at a failure."""
    changes = changes_of(case, settings)
    if changes is None:
        return None
    config = next((change.config for change in changes if change.config is not None), None)
    low, high = (_end(case, settings, end) for end in ("low", "high"))
    return _judged(case, changes, (low, high), config, cut)


def changes_of(case: Case, settings: Sequence[Setting], end: str = "expected") -> list[Change] | None:
    changes: list[Change] = []
    at = case
    for setting in settings:
        change = REMEDIES[setting.name].change(at, setting.options)
        if isinstance(change, NotApplicable):
            return None
        changes.append(change)
        timeline = getattr(change, end) or change.expected
        at = replace(at, timeline=timeline, autocast=at.autocast or setting.name == "mixed-precision")
    return changes


def margin_of(case: Case, settings: Sequence[Setting]) -> float:
    """The widest margin of the remedies taken together."""
    if not case.facts.known:
        return MARGIN_UNKNOWN
    names = [f"{s.name}/{what}" for s in settings for what in s.options.get("what", ())]
    names += [setting.name for setting in settings if "what" not in setting.options]
    widest = max((MARGINS.get(name, MARGIN_OTHER) for name in names), default=MARGIN_OTHER)
    return widest + (MARGIN_INFERRED if case.facts.inferred else 0.0)


def _end(case: Case, settings: Sequence[Setting], end: str) -> int | None:
    """Requested bytes at the peak when every open question is decided one way; None where none is open."""
    changes = changes_of(case, settings, end)
    if not changes or all(getattr(change, end) is None for change in changes):
        return None
    last = getattr(changes[-1], end) or changes[-1].expected
    return int(last.peak().bytes)


def _judged(
    case: Case,
    changes: Sequence[Change],
    ends: tuple[int | None, int | None],
    config: AllocatorConfig | None,
    cut: bool,
) -> Evaluated:
    expected = changes[-1].expected
    rest = _still_to_run(case, expected) if cut else 0
    if rest:
        span = (rest, expected.events - 0.5, float(expected.events))
        expected = expected.added([span], category=Category.ACTIVATION, phase=FORWARD)
    run = replayed(expected, case.job, config)
    requested = max(1, expected.peak().bytes)
    low, high = (run.peak_allocated_bytes * (end or requested) // requested for end in ends)
    margin = margin_of(case, [change.setting for change in changes])
    band = band_of(run.peak_allocated_bytes, low, high, margin)
    doubts = "; ".join(change.doubt for change in changes if change.doubt)
    why = "; ".join(change.why for change in changes)
    if cut:
        why += "; the recording ends at the failure, so what the rest of the step needs is not in this number"
        why += f", but {size(rest)} for the blocks that had not run" if rest else ""
    return Evaluated(
        changes=tuple(changes),
        timeline=expected,
        estimate=Estimate(
            settings=tuple(change.setting for change in changes),
            predicted_peak_bytes=band,
            saves_bytes=max(0, case.allocated_before - run.peak_allocated_bytes),
            step_time_factor=product([change.step_time_factor for change in changes]),
            numerics=worst([change.numerics for change in changes]),
            why=why + (f" ({doubts})" if doubts else ""),
            spread=_spread(case, changes, margin),
            by_hand="; ".join(change.by_hand for change in changes if change.by_hand),
        ),
        fits=_fits(band, run.fits, case.job.capacity_bytes, cut),
        reserved_bytes=run.peak_reserved_bytes,
    )


def _still_to_run(case: Case, timeline: Timeline) -> int:
    """What the blocks that a forward had not come to will keep, each as much as one that ran keeps at the failure."""
    last = next(reversed(iterations(case.timeline)), None)
    if last is None or last.backward_start < case.timeline.events:
        return 0
    inside = case.timeline.birth >= last.start
    ran = [path for path in case.facts.blocks if (case.timeline.under(path) & inside).any()]
    whole = ran[:-1]  # the failure is in the last, or after it
    if not whole or len(ran) == len(case.facts.blocks):
        return 0
    kept = (timeline.birth >= last.start) & (timeline.death >= timeline.events)
    held = sum(int(timeline.size[kept & timeline.under(path)].sum()) for path in whole)
    return held * (len(case.facts.blocks) - len(ran)) // len(whole)


def _spread(case: Case, changes: Sequence[Change], margin: float) -> str:
    """Why the two bands are as wide as they are."""
    untried = [change.setting.name for change in changes if change.setting.name in UNTRIED]
    parts = [
        f"peak: {margin:.0%} to each side is assumed, no run with {', '.join(untried)} has been compared"
        if untried
        else f"peak: runs with such changes came within {margin:.0%} of the prediction"
    ]
    if case.facts.inferred:
        parts.append("modules and their parameters are read from frames")
    parts += [change.doubt for change in changes if change.doubt]
    times = list(dict.fromkeys(change.time_doubt for change in changes if change.time_doubt))
    return "; ".join(parts) + (f". Step time: {'; '.join(times)}" if times else "")


def _fits(band: ByteBand, replay_fits: bool, capacity: int | None, cut: bool) -> bool | None:
    """True when even the high end has room; False when even the low end has none; None in between."""
    if capacity is None:
        return None
    if band.low > capacity:
        return False
    if not replay_fits:
        return False if band.expected > capacity else None
    if cut:
        return None
    return True if band.high <= capacity else None
