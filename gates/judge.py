"""Holds a measured job against its limits and its baseline."""

from ..diagnosers.interface import DeviceProfile
from ..diagnosers.text import size
from . import moved
from .interface import Amount, Check, Gate, Limits, Measured


def judge(job: str, limits: Limits, device: DeviceProfile, now: Measured, baseline: Measured | None) -> Gate:
    """`device` is the one that `now` was measured on; an out-of-memory never passes."""
    peak = now.peak(limits.metric)
    assert peak is not None  # `measure.worst` refuses a recording without it
    before = baseline.peak(limits.metric) if baseline else None
    checks = [
        _fits(device),
        *_budget(limits, peak),
        *_headroom(limits, device, peak),
        *_growth(limits, device, before, peak),
    ]
    fixed = [each.limit_bytes for each in checks if each.name in ("budget", "headroom")]
    return Gate(
        job=job,
        passed=all(each.passed for each in checks),
        metric=limits.metric,
        peak_bytes=peak,
        checks=tuple(checks),
        budget_bytes=min((each for each in fixed if each is not None), default=None),
        baseline_bytes=before,
        categories=moved.categories(baseline, now) if baseline else (),
        moved=moved.lines(baseline, now) if baseline else (),
        held=tuple(sorted(now.lines, key=lambda line: -line.bytes)),
        notes=_notes(baseline, now),
    )


def _fits(device: DeviceProfile) -> Check:
    if device.oom is not None:
        return Check(name="fits", passed=False, limit_bytes=None, text="the job ran out of memory")
    return Check(name="fits", passed=True, limit_bytes=None, text="no out of memory")


def _budget(limits: Limits, peak: int) -> list[Check]:
    budget = limits.budget_bytes
    if budget is None:
        return []
    return [Check(name="budget", passed=peak <= budget, limit_bytes=budget, text=f"at most {size(budget)}")]


def _headroom(limits: Limits, device: DeviceProfile, peak: int) -> list[Check]:
    if limits.headroom is None:
        return []
    card = device.capacity_bytes
    asked = f"{_told(limits.headroom)} of the card left"
    if card is None:
        return [Check(name="headroom", passed=False, limit_bytes=None, text=f"{asked}: its capacity is not known")]
    most = max(0, card - (device.outside_bytes or 0) - limits.headroom.of(card))
    text = f"{asked}: at most {size(most)} of {size(card)}"
    return [Check(name="headroom", passed=peak <= most, limit_bytes=most, text=text)]


def _growth(limits: Limits, device: DeviceProfile, before: int | None, peak: int) -> list[Check]:
    if limits.growth is None:
        return []
    if before is None:
        if device.oom is not None:  # such a job never gets a baseline
            return []
        text = "there is no baseline to compare with: oomdoc gate --update writes it"
        return [Check(name="baseline", passed=False, limit_bytes=None, text=text)]
    most = before + limits.growth.of(before)
    text = f"at most {_told(limits.growth)} over the baseline of {size(before)}: {size(most)}"
    return [Check(name="growth", passed=peak <= most, limit_bytes=most, text=text)]


def _told(amount: Amount) -> str:
    return f"{100 * amount.share:g} %" if amount.share is not None else size(amount.bytes or 0)


def _notes(baseline: Measured | None, now: Measured) -> tuple[str, ...]:
    """Where the two were not measured alike."""
    if baseline is None:
        return ()
    pairs = (
        ("torch", baseline.torch, now.torch),
        ("GPU", baseline.gpu, now.gpu),
        ("world size", baseline.world_size, now.world_size),
    )
    return tuple(
        f"the baseline was measured with {what} {old}, this run with {new}" for what, old, new in pairs if old != new
    )
