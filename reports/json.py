"""`oomdoc.report/1`: the stable JSON contract, described by configs/report.schema.json."""

import json
from typing import Any

from ..diagnosers.interface import DeviceProfile, Finding, Location
from ..remedies.interface import Candidate, Plan
from .figures import assumed, estimated_bytes, peak_bytes, peak_range
from .headline import host_bytes
from .model import DeviceReplay, Report

SCHEMA = "oomdoc.report/1"


def render(report: Report) -> str:
    """The report as indented JSON, with a newline at its end."""
    return json.dumps(to_dict(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_dict(report: Report) -> dict[str, Any]:
    source, verdict = report.source, report.verdict
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "source": {
            "path": source.path,
            "kind": source.kind,
            "torch": source.torch,
            "gpu": source.gpu,
            "world_size": source.world_size if report.log is None else None,  # a log need not name all ranks
            "ranks": list(source.ranks),
        },
        "verdict": {
            "out_of_memory": verdict.out_of_memory,
            "rank": verdict.rank,
            "device": verdict.device,
            "summary": verdict.summary,
        },
        "devices": [_device(device, report.replays) for device in report.diagnosis.profile.devices],
        "findings": [_finding(finding) for finding in report.diagnosis.findings],
        "inconclusive": inconclusive(report) + assumptions(report),
        "remedies": [candidate(each) for each in report.plan.candidates] if report.plan else [],
    }
    if report.explanation is not None:
        from . import explained

        content["explanation"] = explained.section(report.explanation)
    if report.ranks is not None:
        from . import ranks_json

        content["ranks"] = ranks_json.section(report.ranks)
    if report.plan is not None:
        from .plan_json import section

        content["plan"] = section(report.plan)
    if report.log is not None:
        from . import log_json  # nothing else needs it, and a start is short

        content["devices"] = log_json.devices(report.log)
        content["log"] = log_json.section(report.log)
    if report.gate is not None:
        from .gate_json import gate

        content["gate"] = gate(report.gate)
    return content


def inconclusive(report: Report) -> list[dict[str, str]]:
    """What could not be told and why: causes, parts of the file left out, remedies that do not apply."""
    found = [{"code": each.code, "reason": each.reason} for each in report.diagnosis.inconclusive]
    for device in report.diagnosis.profile.devices:
        found += [{"code": "snapshot", "reason": f"device {device.device}: {problem}"} for problem in device.problems]
    if report.plan:
        found += _unplanned(report.plan)
    return found


def assumptions(report: Report) -> list[dict[str, str]]:
    """What the recorder had to assume, as entries of the same list."""
    return [{"code": "recording", "reason": each} for each in assumed(report.diagnosis.profile)]


def _unplanned(plan: Plan) -> list[dict[str, str]]:
    reasons = [{"code": each.name, "reason": each.reason} for each in plan.not_applicable]
    reasons += [
        {"code": each.name, "reason": f"not verified: {each.verified.error}"}
        for each in plan.candidates
        if each.verified is not None and each.verified.error is not None
    ]
    return reasons


def _device(profile: DeviceProfile, replays: tuple[DeviceReplay, ...]) -> dict[str, Any]:
    peak = profile.peak
    content: dict[str, Any] = {
        "rank": profile.rank,
        "device": profile.device,
        "capacity_bytes": profile.capacity_bytes,
        "start_bytes": profile.start_bytes,
        "final_bytes": profile.final_bytes,
        "peak": {
            "requested_bytes": peak.requested_bytes,
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": peak.reserved_bytes,
            "event": peak.event,
            "step": peak.step,
            "phase": peak.phase,
        },
        "categories": {
            category.value: {"bytes": held.bytes, "confidence": held.confidence.value}
            for category, held in profile.categories.items()
        },
        "cached": _cached(profile),
        "outside_bytes": profile.outside_bytes,
        "estimated_bytes": estimated_bytes(profile),
        "peak_range": _range(profile),
        "host_bytes": host_bytes(profile),
        "oom": _oom(profile),
        "call_sites": [site.row() for site in profile.call_sites],
    }
    mine = [each for each in replays if (each.rank, each.device) == (profile.rank, profile.device)]
    if mine:
        content["replay"] = _replay(mine[-1])
    return content


def _range(profile: DeviceProfile) -> dict[str, int] | None:
    known = peak_range(profile)
    if known is None:
        return None
    leave = known.leave(peak_bytes(profile), profile.outside_bytes or 0)
    return {
        "low_bytes": known.low,
        "high_bytes": known.high,
        "brief_bytes": known.brief,
        "leave_bytes": leave,
    }


def _cached(profile: DeviceProfile) -> dict[str, int] | None:
    if profile.cached is None:
        return None
    return {
        "bytes": profile.cached.bytes,
        "fragmented_bytes": profile.cached.fragmented_bytes,
        "largest_free_block_bytes": profile.cached.largest_free_block_bytes,
    }


def _oom(profile: DeviceProfile) -> dict[str, int | None] | None:
    if profile.oom is None:
        return None
    return {
        "requested_bytes": profile.oom.requested_bytes,
        "device_free_bytes": profile.oom.device_free_bytes,
        "event": profile.oom.event,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "title": finding.title,
        "rank": finding.rank,
        "device": finding.device,
        "bytes": finding.bytes,
        "share_of_peak": finding.share_of_peak,
        "confidence": finding.confidence.value,
        "evidence": list(finding.evidence),
        "locations": [_location(each) for each in finding.locations],
        "remedies": list(finding.remedies),
    }


def _location(location: Location) -> dict[str, Any]:
    return {"file": location.file, "line": location.line, "function": location.function}


def candidate(row: Candidate) -> dict[str, Any]:
    """One row of `remedies`."""
    estimate, verified = row.estimate, row.verified
    peak, time = estimate.predicted_peak_bytes, estimate.step_time_factor
    judged = verified is not None and verified.error is None
    return {
        "name": row.name,
        "fits": row.fits,
        "verified": {"on": verified.on, "peak_bytes": verified.peak_bytes, "fits": verified.fits}
        if verified is not None and judged
        else None,
        "predicted_peak_bytes": {"low": peak.low, "expected": peak.expected, "high": peak.high},
        "saves_bytes": estimate.saves_bytes,
        "step_time_factor": {"low": time.low, "expected": time.expected, "high": time.high},
        "numerics": estimate.numerics.value,
        "why": estimate.why,
        "spread": estimate.spread,
        "pareto": row.pareto,
        "settings": {setting.name: dict(setting.options) for setting in estimate.settings},
    }


def _replay(replay: DeviceReplay) -> dict[str, Any]:
    return {
        "alloc_events": replay.alloc_events,
        "matched_addresses": replay.matched_addresses,
        "segment_events": replay.segment_events,
        "matched_segments": replay.matched_segments,
        "fits": replay.fits,
        "peak_reserved_bytes": replay.peak_reserved_bytes,
    }
