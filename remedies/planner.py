"""Which changes make the job fit, ranked: those that fit first, then those that keep the training, by what they cost.

What a change costs is its step time, what making it asks for, and whether it computes at another precision, each as a
factor: autocast, which makes a float32 job faster, comes before the same numbers at a slower step, as an expert would
have it. `keep_numerics` is for those who need the numbers. Slips of the script come before everything.

Singles and combinations are computed on the recorded timeline; the best are verified by running the job again where
the caller can do that.
"""

import difflib
import time
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ..configs.loader import parse_size
from ..diagnosers.interface import DeviceProfile, MemoryProfile
from ..errors import OomdocError
from .all_remedies import REMEDIES
from .combining import can_be_applied, combined
from .costs.explaining import communication
from .costs.topology import parsed
from .estimating import Case, case_of
from .evaluating import evaluate
from .interface import (
    Candidate,
    Constraints,
    Effort,
    Estimate,
    Job,
    NotApplicable,
    Numerics,
    Plan,
    Setting,
    Verified,
    Verify,
)
from .way_out import front, way_out

ENOUGH_PROVEN = 3
LEAST_SAVED = 0.01  # of the peak
LEAST_COMBINED = 12  # combinations that are kept however many single changes there are
UNLIMITED = Constraints()


def plan(
    profile: MemoryProfile | DeviceProfile,
    job: Job,
    verify: Verify | None = None,
    *,
    whole: MemoryProfile | DeviceProfile | None = None,
    limits: Constraints = UNLIMITED,
    verify_at_most: int = 4,
    verify_seconds: float = 30.0,
    keep: int = 24,
) -> Plan:
    """The candidates for the device with the highest need.

    Raises OomdocError for limits that cannot be: a name that no remedy has, a topology of no known network. `whole` is
    the same job recorded without a memory limit: then what comes after an out-of-memory is known as well. `verify` is
    called for candidates that can be applied at run time, best first: until three of them are seen to fit or
    `verify_at_most` were tried, then for the others as far as `verify_seconds` (of all of them) go.
    """
    _known((*limits.only, *limits.without))
    job = _limited(job, limits)
    device = _device(profile)
    needs = _device(whole) if whole is not None else device
    case = case_of(needs, job)
    cut = needs.oom is not None
    names = [name for name in REMEDIES if (not limits.only or name in limits.only) and name not in limits.without]
    singles, refused = _singles(case, names)
    singles = [s for s in singles if not limits.keep_numerics or _keeps_numerics(s)]
    evaluated = [e for e in (evaluate(case, (s,), cut) for s in singles) if e is not None]
    evaluated += combined(case, singles, evaluated, cut)
    evaluated = [e for e in evaluated if _allowed(e.estimate, limits)]
    candidates = sorted((Candidate(estimate=e.estimate, fits=e.fits) for e in evaluated), key=_order)
    candidates = _verified(_shortened(_without_idle(candidates), keep), verify, verify_at_most, verify_seconds)
    candidates = front(sorted(candidates, key=_order))
    over = bool(candidates) and all(each.is_over for each in candidates)
    return Plan(
        candidates=tuple(candidates),
        not_applicable=tuple(refused),
        way_out=way_out(case, evaluated, may_shard="fsdp" in names) if over else (),
        communication=communication(case),
    )


def _known(names: Sequence[str]) -> None:
    for name in names:
        if name not in REMEDIES:
            near = difflib.get_close_matches(name, REMEDIES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(REMEDIES)}"
            raise OomdocError(f"no remedy is called {name!r}; {hint}")


def best(made: Plan) -> Candidate | None:
    """The first candidate that was seen to fit, else the first that should."""
    seen = [each for each in made.candidates if each.verified is not None and each.verified.fits]
    should = [each for each in made.candidates if each.fits and each.verified is None]
    return next(iter([*seen, *should]), None)


def estimate(name: str, profile: DeviceProfile, job: Job) -> tuple[Estimate, ...] | NotApplicable:
    """What one remedy would bring by itself, for each of its settings."""
    case = case_of(profile, job)
    found = REMEDIES[name].settings(case)
    if isinstance(found, NotApplicable):
        return found
    results = [evaluate(case, (setting,), profile.oom is not None) for setting in found]
    return tuple(each.estimate for each in results if each is not None)


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


def _keeps_numerics(setting: Setting) -> bool:
    """Combinations are not made of what is not allowed alone."""
    return REMEDIES[setting.name].NUMERICS is Numerics.IDENTICAL


def _allowed(estimate: Estimate, limits: Constraints) -> bool:
    if limits.keep_numerics and estimate.numerics is not Numerics.IDENTICAL:
        return False
    return limits.max_slowdown is None or estimate.step_time_factor.expected <= limits.max_slowdown


def _limited(job: Job, limits: Constraints) -> Job:
    """The job on the topology that was asked for, with the headroom left free."""
    if limits.topology is not None:
        job = parsed(limits.topology, job)
    if limits.headroom is None or job.capacity_bytes is None:
        return job
    text = limits.headroom.strip()
    if text.endswith("%"):
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            raise OomdocError(f"--headroom {limits.headroom}: write a size such as 2GiB or a share below 100%")
        free = round(job.capacity_bytes * share)
    else:
        free = parse_size(text)
    if free >= job.capacity_bytes:
        raise OomdocError(f"--headroom {limits.headroom} leaves nothing of the card to the job")
    return replace(job, capacity_bytes=job.capacity_bytes - free)


def _without_idle(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without those that save next to nothing of this peak; allocator settings save reserved memory."""
    return [
        each
        for each in candidates
        if each.estimate.saves_bytes
        > LEAST_SAVED * (each.estimate.saves_bytes + each.estimate.predicted_peak_bytes.expected)
        or "allocator-settings" in {s.name for s in each.estimate.settings}
    ]


def _shortened(candidates: Sequence[Candidate], keep: int) -> list[Candidate]:
    """Every single change, and the best combinations beside them."""
    combined = [each for each in candidates if len(each.estimate.settings) > 1]
    room = max(LEAST_COMBINED, keep - (len(candidates) - len(combined)))
    return [each for each in candidates if len(each.estimate.settings) == 1 or each in combined[:room]]


# As how much longer a step a change counts beside its step time: what a user gives to be spared it. A setting counts
# for one more thing to know; some lines for less than one doubling of micro-batches costs (5 %); splitting the model
# for as much as recomputing all of it, which has to be worse before one does.
TROUBLE = {Effort.REPAIR: 1.0, Effort.SETTING: 1.01, Effort.LINES: 1.04, Effort.REWORK: 1.27}
ANOTHER_PRECISION = 1.03  # published loss curves are alike; they have to be looked at


def cost(estimate: Estimate) -> float:
    """The expected step time, times what the changes ask for and what another precision is held to cost."""
    trouble = prod(TROUBLE[REMEDIES[setting.name].EFFORT] for setting in estimate.settings)
    precision = 1.0 if estimate.numerics is Numerics.IDENTICAL else ANOTHER_PRECISION
    return estimate.step_time_factor.expected * trouble * precision


def _repairs(estimate: Estimate) -> bool:
    return all(REMEDIES[setting.name].EFFORT is Effort.REPAIR for setting in estimate.settings)


def _order(candidate: Candidate) -> tuple[Any, ...]:
    """Seen to fit, predicted to, perhaps, not; then slips, the same training, what it costs, the least memory."""
    seen = candidate.verified
    if seen is not None and seen.error is None:
        place = 0 if seen.fits else 4
    else:
        place = {True: 1, None: 2, False: 3}[candidate.fits]
    estimate = candidate.estimate
    return (
        place,
        not _repairs(estimate),
        estimate.numerics is Numerics.CHANGED,
        round(cost(estimate), 3),
        len(estimate.settings),
        estimate.predicted_peak_bytes.expected,
    )


def _verified(candidates: Sequence[Candidate], verify: Verify | None, at_most: int, seconds: float) -> list[Candidate]:
    """Run again with the best ones: not what cannot fit, not what has to be changed by hand."""
    result = list(candidates)
    if verify is None:
        return result
    proven, longest, start = 0, 0.0, time.monotonic()
    for tried, index in enumerate(_worth_verifying(result)):
        begun = time.monotonic()
        if (tried >= at_most or proven >= ENOUGH_PROVEN) and begun + longest > start + seconds:
            break
        seen: Verified = verify(result[index].estimate.settings)
        longest = max(longest, time.monotonic() - begun)
        result[index] = replace(result[index], verified=seen)
        proven += seen.fits and seen.error is None
    return result


def _worth_verifying(candidates: Sequence[Candidate]) -> list[int]:
    """Best first; then the fastest that should fit; then one of each family (the same names) before a second one."""
    able = [i for i, each in enumerate(candidates) if each.fits is not False and can_be_applied(each.estimate)]
    fitting = [i for i in able if candidates[i].fits]
    fastest = sorted(fitting, key=lambda i: candidates[i].estimate.step_time_factor.expected)[:1]
    first: dict[str, int] = {}
    for i in able:
        first.setdefault(candidates[i].name, i)
    return list(dict.fromkeys([*able[:1], *fastest, *first.values(), *able]))
