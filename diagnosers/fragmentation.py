"""Enough memory was free, but in pieces too small for the request.

What it means
    The allocator holds free memory inside segments that live blocks pin: it can neither serve the request nor go
    back to the driver. Typical of sizes that change from step to step.

Evidence used
    Arithmetic at the failure: the largest free block is smaller than the request, while all free blocks of the
    process (with what the driver still had) are not: an error where the job would have fitted without the holes
    (earlier steps had needed as much; or the highest complete step, with what has grown since, is below what the
    process had), or where a third of the reserved memory is holes; else, or where a leak explains it, a warning.
    Segments are rewound to the moment of the failure. The blocks that pin the emptiest segments are named. Without a
    failure the same at the peak, for the largest request of the recording, as a note.

Example
    An 11 GiB segment is free after step 1; in step 2 small tensors settle in it, 0.5 GiB of it live, and the next
    11 GiB request fails with half of the card free (pytorch issue 35901).

Known limits
    Memory that another stream or a private pool (CUDA graphs) holds counts as free but unusable, and no block is
    named as pinning an expandable segment, whose pages go back one by one. Where the block sizes of a bare snapshot
    rest on rounded requests, unsplit remainders (under 1 MiB each) count as free.

What the remedies change
    allocator-settings: expandable_segments:True lets segments grow instead of leaving holes; max_split_size_mb
    keeps large blocks whole (never both). Neither changes the numbers that the job computes.
"""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate, pairwise

from ..allocator.fragmentation import pinned
from ..snapshots.timeline import live_bytes
from .heap import heap
from .interface import Case, Claim, Confidence, DeviceProfile, Location, Severity
from .judging import Held, held_by_line, locations
from .text import percent, size

CODE = "OOM005"
NAME = "fragmentation"
REMEDIES = ("allocator-settings", "smaller-batch")
DECISIVE = True
PINNED_SHARE = (
    0.8  # of the free memory beside live blocks: the segments that hold so much of it are the ones to look at
)


def diagnose(case: Case, thresholds: Mapping[str, float]) -> Claim | None:
    profile, cached = case.profile, case.profile.cached
    if (
        cached is None
        or cached.for_request_bytes is None
        or cached.largest_free_block_bytes >= cached.for_request_bytes
    ):
        return None
    reserved = profile.live_bytes + cached.bytes if profile.oom is None else profile.oom.reserved_bytes
    part = cached.fragmented_bytes / reserved if reserved else 0.0
    if profile.oom is not None:
        free = cached.bytes + (profile.oom.device_free_bytes or 0)
        fits = free >= profile.oom.requested_bytes
        explained = sum(profile.live[index].requested_bytes for index in case.blamed) >= profile.oom.requested_bytes
        decisive = (
            part >= thresholds["decisive_share"]
            or _is_no_new_demand(profile, part, thresholds)
            or (part >= thresholds["min_share_when_it_would_do"] and _would_have_fitted(profile))
        )
        if fits and decisive and not explained:
            return _claim(case, Severity.ERROR, part, free)
        if part >= thresholds["min_share" if not fits else "min_share_when_it_would_do"]:
            return _claim(case, Severity.WARNING, part, free)
        return None
    enough = part >= thresholds["min_share_when_it_fits"] and cached.fragmented_bytes >= thresholds["min_bytes"]
    return _claim(case, Severity.NOTE, part, cached.bytes) if enough else None


def _claim(case: Case, severity: Severity, part: float, free: int) -> Claim:
    profile, cached = case.profile, case.profile.cached
    assert cached is not None
    assert cached.for_request_bytes is not None
    request, largest = size(cached.for_request_bytes), size(cached.largest_free_block_bytes)
    if profile.oom is not None and free >= profile.oom.requested_bytes:
        title = f"{size(free)} were free when {request} were asked for, but the largest free block had {largest}"
    else:
        title = f"{size(cached.fragmented_bytes)} are reserved but free in pieces of at most {largest}"
    pins = _pins(profile)
    evidence = [f"{percent(part)} of the reserved memory is free and useless for {request}"]
    evidence += [f"pinned by {row}" for row in pins[:2]]
    expandable = bool(profile.device_snapshot.segments.expandable.any())
    if expandable:
        evidence.append("expandable segments are on already")
    return Claim(
        severity=severity,
        title=title,
        bytes=cached.fragmented_bytes,
        share=part,
        confidence=Confidence.EXACT if profile.block_sizes_exact else Confidence.INFERRED,
        evidence=tuple(evidence),
        locations=_requester(profile) + locations(pins)[:2],
        remedies=REMEDIES[1:] if expandable else REMEDIES,
    )


def _is_no_new_demand(profile: DeviceProfile, part: float, thresholds: Mapping[str, float]) -> bool:
    """The job has held (about) as much before as it asked for now: it is the holes that fail it."""
    if profile.oom is None or part < thresholds["min_share_when_decisive"]:
        return False
    ended = [step.event for step in profile.steps if step.event < profile.oom.event]
    if not ended:
        return False
    before = int(live_bytes(profile.device_snapshot)[: ended[-1] + 2].max())
    return profile.live_bytes + profile.oom.requested_bytes <= thresholds["new_demand"] * before


def _would_have_fitted(profile: DeviceProfile) -> bool:
    """The whole step, not the request alone: as much as the highest step before it, and what has grown since.

    A step that fails in its forward with more than that is larger than any before: how far it goes, nobody saw.
    """
    oom = profile.oom
    ended = [step for step in profile.steps if oom is not None and step.event < oom.event]
    if oom is None or len(ended) < 2:
        return False
    # what a step began with is what the one before it left; the first began before its optimizer state was there
    before = max(after.peak_bytes - begun.live_bytes for begun, after in pairwise(ended)) + ended[-1].live_bytes
    now = profile.live_bytes + oom.requested_bytes
    if oom.phase not in ("backward", "optimizer") and now > before:
        return False
    this = int(live_bytes(profile.device_snapshot)[ended[-1].event + 1 : oom.event + 2].max())
    return max(before, this, now) <= oom.reserved_bytes + (oom.device_free_bytes or 0)


def _requester(profile: DeviceProfile) -> tuple[Location, ...]:
    return (profile.oom.location,) if profile.oom and profile.oom.location else ()


def _pins(profile: DeviceProfile) -> list[Held]:
    """The lines whose blocks live in the segments that most of the pinned memory is in."""
    event = profile.oom.event if profile.oom else profile.peak.event
    rows = pinned(heap(profile.snapshot, profile.device_snapshot, event, profile.live))
    sums = list(accumulate(row.free for row in rows))
    enough = bisect_left(sums, PINNED_SHARE * sums[-1]) + 1 if sums else 0
    holders = {block.address for row in rows[:enough] for block in row.holders}
    pinning = [block for block in profile.live if block.address in holders]
    return [row for row in held_by_line(profile, pinning) if row.location is not None]
