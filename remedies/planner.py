"""Which changes make the job fit, ranked: those that fit first, then those that keep the numbers, then the fastest.

Singles and combinations are computed on the recorded timeline; the best are verified by running the job again where
the caller can do that. A combination is offered only if none of its parts fits alone at no higher cost.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from ..allocator.config import AllocatorConfig
from ..diagnosers.interface import DeviceProfile, MemoryProfile
from ..errors import OomdocError
from .all_remedies import REMEDIES
from .config_file import OPTIONS
from .estimating import Case, Change, band_of, case_of, product, replayed, worst
from .interface import (
    ByteBand,
    Candidate,
    Estimate,
    Job,
    NotApplicable,
    Numerics,
    Plan,
    Setting,
    Verified,
    Verify,
)
from .whatif_timeline import Timeline

ENOUGH_PROVEN = 3
COMBINED = ("mixed-precision", "activation-checkpointing", "gradient-accumulation", "fsdp", "cpu-offload")
SEARCHED = "gradient-accumulation"  # the one whose size is searched inside a combination: the fewest micro-batches

# How far a rerun with the change may differ from the prediction, as a share of the peak: on the safe side of what
# tests/remedies/test_predictions.py sees on recorded runs. Lifetimes are exact where a remedy only moves or shrinks
# what was recorded; types under autocast and the moment an offloaded activation returns are inferred.
MARGINS = {
    "activation-checkpointing": 0.03,
    "gradient-accumulation": 0.02,
    "fsdp": 0.04,
    "mixed-precision": 0.06,
    "cpu-offload/optimizer_state": 0.01,
    "cpu-offload/activations": 0.06,
}
MARGIN_OTHER = 0.02
MARGIN_INFERRED = 0.08  # without recorded modules and categories the whole chain is inferred


@dataclass(frozen=True)
class _Evaluated:
    changes: tuple[Change, ...]
    timeline: Timeline  # after all of them
    estimate: Estimate
    fits: bool | None
    reserved_bytes: int


def plan(
    profile: MemoryProfile | DeviceProfile,
    job: Job,
    verify: Verify | None = None,
    *,
    whole: MemoryProfile | DeviceProfile | None = None,
    only: Collection[str] = (),
    without: Collection[str] = (),
    keep_numerics: bool = False,
    max_slowdown: float | None = None,
    verify_at_most: int = 4,
    keep: int = 24,
) -> Plan:
    """The candidates for the device with the highest need.

    `whole` is the same job recorded without a memory limit: then what comes after an out-of-memory is known as well.
    `verify` is called for at most `verify_at_most` candidates that can be applied at run time, best first, until
    three of them are seen to fit.
    """
    device = _device(profile)
    needs = _device(whole) if whole is not None else device
    case = case_of(needs, job)
    cut = needs.oom is not None
    names = [name for name in REMEDIES if (not only or name in only) and name not in without]
    singles, refused = _singles(case, names)
    evaluated = [e for e in (_evaluate(case, (s,), cut) for s in singles) if e is not None]
    evaluated += _combined(case, singles, evaluated, cut)
    evaluated = [e for e in evaluated if _allowed(e.estimate, keep_numerics, max_slowdown)]
    candidates = sorted((Candidate(estimate=e.estimate, fits=e.fits) for e in evaluated), key=_order)
    candidates = _verified(_shortened(_without_idle(candidates), keep), verify, verify_at_most)
    return Plan(candidates=tuple(sorted(candidates, key=_order)), not_applicable=tuple(refused))


def estimate(name: str, profile: DeviceProfile, job: Job) -> tuple[Estimate, ...] | NotApplicable:
    """What one remedy would bring by itself, for each of its settings."""
    case = case_of(profile, job)
    found = REMEDIES[name].settings(case)
    if isinstance(found, NotApplicable):
        return found
    results = [_evaluate(case, (setting,), profile.oom is not None) for setting in found]
    return tuple(each.estimate for each in results if each is not None)


def margin_of(case: Case, settings: Sequence[Setting]) -> float:
    """The widest margin of the remedies taken together."""
    if not case.facts.known:
        return MARGIN_INFERRED
    names = [f"{s.name}/{what}" for s in settings for what in s.options.get("what", ())]
    names += [setting.name for setting in settings if "what" not in setting.options]
    return max((MARGINS.get(name, MARGIN_OTHER) for name in names), default=MARGIN_OTHER)


def _device(profile: MemoryProfile | DeviceProfile) -> DeviceProfile:
    """The device that ran out of memory, else the one with the highest peak. OomdocError where there is none."""
    if isinstance(profile, DeviceProfile):
        return profile
    if not profile.devices:
        raise OomdocError("the snapshot holds no device, so there is nothing to plan for: did the job use the GPU?")
    return max(profile.devices, key=lambda each: (each.oom is not None, each.peak.requested_bytes))


def _singles(case: Case, names: Sequence[str]) -> tuple[list[Setting], list[NotApplicable]]:
    settings: list[Setting] = []
    refused: list[NotApplicable] = []
    for name in names:
        found = REMEDIES[name].settings(case)
        if isinstance(found, NotApplicable):
            refused.append(found)
        else:
            settings.extend(found)
    return settings, refused


def _evaluate(case: Case, settings: Sequence[Setting], cut: bool) -> _Evaluated | None:
    changes = _changes(case, settings)
    if changes is None:
        return None
    config = next((change.config for change in changes if change.config is not None), None)
    low, high = (_end(case, settings, end) for end in ("low", "high"))
    return _judged(case, changes, (low, high), config, cut)


def _changes(case: Case, settings: Sequence[Setting], end: str = "expected") -> list[Change] | None:
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


def _end(case: Case, settings: Sequence[Setting], end: str) -> int | None:
    """Requested bytes at the peak when every open question is decided one way; None where none is open."""
    changes = _changes(case, settings, end)
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
) -> _Evaluated:
    expected = changes[-1].expected
    run = replayed(expected, case.job, config)
    requested = max(1, expected.peak().bytes)
    low, high = (run.peak_allocated_bytes * (end or requested) // requested for end in ends)
    margin = margin_of(case, [change.setting for change in changes])
    band = band_of(run.peak_allocated_bytes, low, high, margin)
    before = case.allocated_before
    doubts = "; ".join(change.doubt for change in changes if change.doubt)
    why = "; ".join(change.why for change in changes)
    if cut:
        why += "; the recording ends at the failure, so what the rest of the step needs is not in this number"
    return _Evaluated(
        changes=tuple(changes),
        timeline=expected,
        estimate=Estimate(
            settings=tuple(change.setting for change in changes),
            predicted_peak_bytes=band,
            saves_bytes=max(0, before - run.peak_allocated_bytes),
            step_time_factor=product([change.step_time_factor for change in changes]),
            numerics=worst([change.numerics for change in changes]),
            why=why + (f" ({doubts})" if doubts else ""),
        ),
        fits=_fits(band, run.fits, case.job.capacity_bytes, cut),
        reserved_bytes=run.peak_reserved_bytes,
    )


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


def _combined(case: Case, singles: Sequence[Setting], known: Sequence[_Evaluated], cut: bool) -> list[_Evaluated]:
    """Subsets of the remedies that go together, in their order, with the fewest micro-batches that make them fit."""
    choices: dict[str, list[Setting]] = {}
    for setting in singles:
        if setting.name in COMBINED:
            choices.setdefault(setting.name, []).append(setting)
    found: list[_Evaluated] = []
    fitting = [e for e in known if e.fits]
    alone = {(s.name, str(s.options)): e.estimate for e in known for s in e.estimate.settings}
    for size in range(2, len(choices) + 1):
        for names in combinations([name for name in REMEDIES if name in choices], size):
            for settings in _variants(names, choices):
                parts = [alone[key] for s in settings if (key := (s.name, str(s.options))) in alone]
                time = product([part.step_time_factor for part in parts]).expected
                if _dominated(set(names), time, fitting):
                    continue
                result = _search(case, settings, choices.get(SEARCHED, []), cut)
                if result is None or _dominated(set(names), result.estimate.step_time_factor.expected, fitting):
                    continue
                found.append(result)
                if result.fits:
                    fitting.append(result)
    return found


def _variants(names: Sequence[str], choices: Mapping[str, list[Setting]]) -> Iterator[tuple[Setting, ...]]:
    """One setting for each name: the first choice, except that offloading may be of state or of activations."""
    if "cpu-offload" in names:
        for setting in choices["cpu-offload"]:
            yield tuple(setting if name == "cpu-offload" else choices[name][0] for name in names)
        return
    yield tuple(choices[name][0] for name in names)


def _search(case: Case, settings: tuple[Setting, ...], counts: Sequence[Setting], cut: bool) -> _Evaluated | None:
    """With accumulation among them: the fewest micro-batches that fit, found on peaks alone, then judged whole."""
    if SEARCHED not in {setting.name for setting in settings} or case.job.capacity_bytes is None:
        return _evaluate(case, settings, cut)
    last: _Evaluated | None = None
    for count in counts:
        tried = tuple(count if setting.name == SEARCHED else setting for setting in settings)
        changes = _changes(case, tried)
        if changes is None:
            return None
        enough = changes[-1].expected.peak().bytes * (1 + margin_of(case, tried)) <= case.job.capacity_bytes
        if enough or count is counts[-1]:
            last = _evaluate(case, tried, cut)
            if last is None or last.fits or count is counts[-1]:
                return last
    return last


def _dominated(names: Set[str], step_time: float, fitting: Sequence[_Evaluated]) -> bool:
    """Something that fits asks for a part of these remedies only, and is no slower."""
    return any(
        {setting.name for setting in other.estimate.settings} < names
        and other.estimate.step_time_factor.expected <= step_time
        for other in fitting
    )


def _allowed(estimate: Estimate, keep_numerics: bool, max_slowdown: float | None) -> bool:
    if keep_numerics and estimate.numerics is not Numerics.IDENTICAL:
        return False
    return max_slowdown is None or estimate.step_time_factor.expected <= max_slowdown


def _without_idle(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without those that save nothing: they are no remedy for this peak (allocator settings save reserved memory)."""
    return [
        each
        for each in candidates
        if each.estimate.saves_bytes > 0 or "allocator-settings" in {s.name for s in each.estimate.settings}
    ]


def _shortened(candidates: Sequence[Candidate], keep: int) -> list[Candidate]:
    """Every single change, and the best combinations beside them."""
    combined = [each for each in candidates if len(each.estimate.settings) > 1]
    room = max(0, keep - (len(candidates) - len(combined)))
    return [each for each in candidates if len(each.estimate.settings) == 1 or each in combined[:room]]


_NUMERICS = list(Numerics)


def _order(candidate: Candidate) -> tuple[Any, ...]:
    """Seen to fit, predicted to, perhaps, not; then numerics, expected step time, the least memory."""
    seen = candidate.verified
    if seen is not None and seen.error is None:
        place = 0 if seen.fits else 4
    else:
        place = {True: 1, None: 2, False: 3}[candidate.fits]
    estimate = candidate.estimate
    return (
        place,
        _NUMERICS.index(estimate.numerics),
        round(estimate.step_time_factor.expected, 3),
        len(estimate.settings),
        estimate.predicted_peak_bytes.expected,
    )


def _verified(candidates: Sequence[Candidate], verify: Verify | None, at_most: int) -> list[Candidate]:
    """Run again with the best ones: not what cannot fit, not what has to be changed by hand."""
    result = list(candidates)
    if verify is None:
        return result
    proven = 0
    for index in _worth_verifying(result)[:at_most]:
        if proven >= ENOUGH_PROVEN:
            break
        seen: Verified = verify(result[index].estimate.settings)
        result[index] = replace(result[index], verified=seen)
        proven += seen.fits and seen.error is None
    return result


def _worth_verifying(candidates: Sequence[Candidate]) -> list[int]:
    """Best first; then the fastest that should fit; then one of each family (the same names) before a second one."""
    able = [
        i
        for i, each in enumerate(candidates)
        if each.fits is not False and all(s.name in OPTIONS for s in each.estimate.settings)
    ]
    fitting = [i for i in able if candidates[i].fits]
    fastest = sorted(fitting, key=lambda i: candidates[i].estimate.step_time_factor.expected)[:1]
    first: dict[str, int] = {}
    for i in able:
        first.setdefault(candidates[i].name, i)
    return list(dict.fromkeys([*able[:1], *fastest, *first.values(), *able]))
