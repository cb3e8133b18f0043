"""One rank or pipeline stage needs far more than the others.

What it means
    The card that is fullest decides: the others have room that nobody uses. Typical of pipeline stages (embedding and
    head on one, more micro-batches in flight on the first), of one process that also loads or logs for all, and of
    batches of uneven length. A process that uses several cards (`nn.DataParallel`, a model that is spread by a
    `device_map`) has the same trouble when one of them runs out.

Evidence used
    The highest live bytes of each rank, and in which category the fullest differs most from the median rank.

Example
    A V-shaped pipeline put the embedding and the head on the same stage, which needed more than the schedule that it
    was to improve on (zero-bubble issue 36).

Known limits
    Needs the snapshots of at least two ranks, or a snapshot of one process with several cards that ran out on the
    fullest; that cards which did not run out are unlike may be meant. A rank that ran out of memory earlier than the
    others were recorded is compared at its own moment.

What the remedies change
    balance-ranks: give the full stage fewer layers, shard its tables (vocabulary parallel), recompute only there, or
    have fewer micro-batches in flight; for uneven batches, balance tokens across ranks.
"""

from collections.abc import Mapping, Sequence

from .interface import Case, Category, Confidence, DeviceProfile, Finding, Severity
from .judging import held_by_line, locations
from .text import percent, size

CODE = "OOM028"
NAME = "rank-imbalance"
REMEDIES = ("balance-ranks",)
DECISIVE = True
MOST_RANKS = 8  # in the evidence


def diagnose(case: Case, thresholds: Mapping[str, float]) -> None:
    """One device has nothing to be compared with: `compare_ranks` sees them all."""


def compare_ranks(devices: Sequence[DeviceProfile], thresholds: Mapping[str, float]) -> Finding | None:
    """Over all devices of a job; None where they are alike, or only one is known."""
    ordered = sorted((device for device in devices if device.live_bytes), key=_needs)
    if len(ordered) < 2:
        return None
    median, fullest = ordered[(len(ordered) - 1) // 2], ordered[-1]
    one_process = len({device.rank for device in ordered}) < 2
    if one_process and fullest.oom is None:
        return None
    more = _needs(fullest) - _needs(median)
    failed = any(device.oom for device in devices)
    if more < thresholds["min_share"] * _needs(fullest) or more < thresholds["min_bytes"]:
        return None
    category = max(
        fullest.categories, key=lambda each: fullest.bytes_of(each) - median.bytes_of(each), default=Category.UNKNOWN
    )
    held = held_by_line(fullest, (b for b in fullest.live if b.category is category))
    name = "device" if one_process else "rank"
    rows = [f"{name} {_number(d, one_process)}: {size(_needs(d))}{_most(d)}" for d in ordered[::-1][:MOST_RANKS]]
    part = more / _needs(fullest)
    share = fullest.categories.get(category)
    told = share is not None and share.confidence is not Confidence.UNKNOWN
    large = part >= thresholds["error_share"]
    if failed:
        severe = Severity.ERROR if large else Severity.WARNING
    else:
        severe = Severity.WARNING if large else Severity.NOTE
    return Finding(
        code=CODE,
        name=NAME,
        severity=severe,
        title=f"{name.capitalize()} {_number(fullest, one_process)} needs {size(_needs(fullest))}, {size(more)}"
        f" ({percent(part)}) more than the median {name}: most of it {category.value}",
        rank=fullest.rank,
        device=fullest.device,
        bytes=more,
        share_of_peak=round(part, 4),
        confidence=share.confidence if share is not None and told else Confidence.INFERRED,
        evidence=tuple(rows),
        locations=locations(held),
        remedies=REMEDIES,
    )


def _number(device: DeviceProfile, one_process: bool) -> int:
    return device.device if one_process else device.rank


def _needs(device: DeviceProfile) -> int:
    """What was live, and what was asked for when memory ran out."""
    return device.live_bytes + (device.oom.requested_bytes if device.oom else 0)


def _most(device: DeviceProfile) -> str:
    named = [c for c in device.categories if c is not Category.UNKNOWN][:2]
    return "".join(f", {size(device.bytes_of(category))} {category.value}" for category in named)
