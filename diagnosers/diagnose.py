"""Ask every cause, in an order in which no byte is blamed twice, and say first what an expert would say first."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import cast

from ..configs.loader import thresholds as load_thresholds
from ..snapshots.model import Frame
from . import rank_imbalance
from .all_causes import DIAGNOSERS
from .interface import (
    Case,
    Category,
    Claim,
    DeviceProfile,
    Diagnoser,
    Diagnosis,
    Finding,
    Inconclusive,
    LiveBlock,
    MemoryProfile,
    Severity,
)
from .judging import MAX_LINES, bytes_of, held_by_line, telling
from .rank_imbalance import compare_ranks
from .suggestions import suited
from .text import size

UNKNOWN_CODE = "OOM000"
# From this share of the live bytes on, what is unknown is said before anything is concluded from the rest.
UNKNOWN_SHARE = 0.3
_LOADERS = ("load", "_load", "_legacy_load")
_SEVERITY = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def diagnose(
    profile: MemoryProfile,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    diagnosers: Mapping[str, Diagnoser | ModuleType] | None = None,
) -> Diagnosis:
    """All causes of all devices. `diagnosers` by code, those that explain most specifically first."""
    limits = load_thresholds() if thresholds is None else thresholds
    causes = cast(Mapping[str, Diagnoser], DIAGNOSERS if diagnosers is None else diagnosers)
    findings: list[tuple[tuple[int, int, int, int], Finding]] = []
    inconclusive: dict[tuple[str, str], Inconclusive] = {}
    for device in profile.devices:
        answers = _diagnose_device(device, limits, causes)
        told = [each for each in answers if isinstance(each, Finding)]
        general = [each.bytes for each in told if getattr(causes[each.code], "GENERAL", False)]
        for order, found in enumerate(answers):
            if isinstance(found, Inconclusive):
                inconclusive.setdefault((found.code, found.reason), found)
            else:
                failed = device.oom is not None
                findings.append(((*_rank(found, causes, max(general, default=0), failed), order), found))
    apart = compare_ranks(profile.devices, limits.get(rank_imbalance.CODE, {})) if diagnosers is None else None
    if apart is not None:
        findings.append(((_SEVERITY[apart.severity], 0, -apart.bytes, len(causes)), apart))
    findings.sort(key=lambda each: each[0])
    return Diagnosis(
        profile=profile,
        findings=tuple(finding for _, finding in findings),
        inconclusive=tuple(inconclusive.values()),
    )


def _diagnose_device(
    device: DeviceProfile, limits: Mapping[str, Mapping[str, float]], causes: Mapping[str, Diagnoser]
) -> list[Finding | Inconclusive]:
    blamed: frozenset[int] = frozenset()
    found: list[Finding | Inconclusive] = []
    for code, cause in causes.items():
        answer = cause.diagnose(Case(profile=device, blamed=blamed), limits.get(code, {}))
        if isinstance(answer, Claim):
            blamed |= answer.blocks
            found.append(_finding(answer, cause, device))
        elif answer is not None:
            found.append(answer)
    unknown = device.bytes_of(Category.UNKNOWN)
    if unknown >= UNKNOWN_SHARE * device.live_bytes > 0:
        found.append(Inconclusive(code=UNKNOWN_CODE, reason=_unknown(device, unknown)))
    return found


def _unknown(device: DeviceProfile, unknown: int) -> str:
    blocks = [block for block in device.live if block.category is Category.UNKNOWN]
    frameless = sum(b.requested_bytes for b in blocks if b.birth < 0 and b.stack < 0)
    told = f"{size(unknown)} of {size(device.live_bytes)} live bytes cannot be told apart"
    if frameless > 0.5 * unknown:
        return f"{told}: they are older than the recording and have no stack; record before the model is built"
    if device.recording is None:
        return f"{told}: their stacks and lifetimes say nothing; `oomdoc run` records what each tensor is for"
    lines = [str(row) for row in telling(held_by_line(device, blocks)[:MAX_LINES])]
    where = f": {'; '.join(lines)}" if lines else ""
    return f"{told}: no model, optimizer or graph that was seen holds them{where}{_loaded(device, blocks)}"


def _loaded(device: DeviceProfile, blocks: Sequence[LiveBlock]) -> str:
    """torch.load puts tensors back where they were saved from, unless it is told otherwise."""
    loaded = bytes_of(block for block in blocks if any(map(_loads, device.frames(block))))
    return f'. {size(loaded)} came from torch.load: map_location="cpu" keeps them off the GPU' if loaded else ""


def _loads(frame: Frame) -> bool:
    return frame.name in _LOADERS and frame.filename.replace("\\", "/").endswith("torch/serialization.py")


def _finding(claim: Claim, cause: Diagnoser, device: DeviceProfile) -> Finding:
    return Finding(
        code=cause.CODE,
        name=cause.NAME,
        severity=claim.severity,
        title=claim.title,
        rank=device.rank,
        device=device.device,
        bytes=claim.bytes,
        share_of_peak=round(claim.share, 4),
        confidence=claim.confidence,
        evidence=claim.evidence,
        locations=claim.locations,
        remedies=suited(cause.REMEDIES if claim.remedies is None else claim.remedies, device.snapshot.recording),
    )


def _rank(finding: Finding, causes: Mapping[str, Diagnoser], largest: int, failed: bool) -> tuple[int, int, int]:
    """What an expert would say first.

    By severity; then causes that explain a failure on their own; then what can be had for nothing, and what holds at
    least half as much as the `largest` category; then what dominates; each by bytes. Where nothing failed there is no
    failure to explain: a note goes by its bytes alone, and being specific is no reason to come first.
    """
    cause = causes[finding.code]
    kind = 2
    if not failed and finding.severity is Severity.NOTE:
        return (_SEVERITY[finding.severity], kind, -finding.bytes)
    if getattr(cause, "DECISIVE", False) and finding.severity is not Severity.NOTE:
        kind = 0
    elif getattr(cause, "FREE", False) or (
        failed and not getattr(cause, "GENERAL", False) and finding.bytes >= largest / 2
    ):
        kind = 1
    return (_SEVERITY[finding.severity], kind, -finding.bytes)
