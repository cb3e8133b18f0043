"""The page's fixed part as plain values for the template: everything that can be read without a script."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...allocator.fragmentation import pinned
from ...diagnosers.heap import heap
from ...diagnosers.interface import DeviceProfile, Finding, Location
from ...diagnosers.ranks import Ranks
from ...gates.interface import Gate
from ...remedies.interface import Candidate, Communication, Plan
from .. import cards, plan_notes, rank_table
from ..figures import assumed, grouped, left_open, parts, peak_bytes, used_bytes
from ..gate_text import failed_checks, sentence
from ..headline import assumed_heading, facts, headline, memory_heading, replay_heading
from ..json import inconclusive
from ..model import CardSamples, DeviceReplay, Report
from ..shortlist import heading, listed, verified
from ..text import band, category_title, change, device_title, factor, maybe_size, percent, place, site_place, size

DRAWN_DEVICES = 8  # with charts and tables of their own; of more, the rest stand in the table of all
_CALL_SITES = 25
_PINNED = 12
_HOLDERS = 3
_CANDIDATES = 12


def drawn_devices(report: Report) -> tuple[DeviceProfile, ...]:
    """The devices that get charts: that of the verdict, those that failed, then those with the highest peaks."""
    devices, verdict = report.diagnosis.profile.devices, report.verdict
    order = sorted(
        devices,
        key=lambda each: ((each.rank, each.device) != (verdict.rank, verdict.device), each.oom is None,
                          -peak_bytes(each), each.rank, each.device),
    )  # fmt: skip
    return tuple(order[:DRAWN_DEVICES])


def content(report: Report) -> dict[str, Any]:
    """What the template fills in; every string is plain text, escaped by the template."""
    drawn = drawn_devices(report)
    verdict = report.verdict
    unsure = verdict.ended is not None or (verdict.device is None and report.source.kind != "log")
    return {
        "headline": headline(report),
        "tone": "bad" if verdict.out_of_memory else "unsure" if unsure else "good",
        "summary": verdict.summary,
        "path": report.source.path,
        "facts": facts(report),
        "gate": _gate(report.gate),
        "all_devices": _all_devices(report) if len(report.diagnosis.profile.devices) > 1 else None,
        "drawn": len(drawn),
        "devices": [_device(report, device) for device in drawn],
        "ranks": _ranks(report.ranks),
        "cards": [_card(card) for card in cards.shown(report.cards)],
        "log": _log(report),
        "explained": _explained(report),
        "findings": [_finding(finding, report) for finding in report.diagnosis.findings],
        "plan": _plan(report.plan, out_of_memory=verdict.out_of_memory) if report.plan else None,
        "replays": [_replay(replay) for replay in report.replays],
        "assumed_heading": assumed_heading(report),
        "assumed": assumed(report.diagnosis.profile),
        "reasons": inconclusive(report),
        "next": report.next_commands,
    }


def _card(card: CardSamples) -> dict[str, Any]:
    found = cards.layers(card)
    return {
        "heading": cards.heading(card),
        "told": cards.sentence(card),
        "shapes": cards.shapes(card),
        "layers": [(each.key, each.name, size(max(each.bytes)), size(each.bytes[-1])) for each in found],
        "seconds": f"{card.seconds[-1]:.0f} s",
        "total": size(card.total_bytes),
    }


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a bar of width 1000."""

    key: str
    x: float
    width: float


def _device(report: Report, device: DeviceProfile) -> dict[str, Any]:
    rows = parts(device)
    whole = sum(part.bytes for part in rows)
    slices, done = [], 0
    for part in rows:
        slices.append(Slice(part.key, 1000 * done / whole, 1000 * part.bytes / whole))
        done += part.bytes
    peak = device.peak
    sites = grouped(device.call_sites)
    return {
        "heading": memory_heading(report, device),
        "slices": slices,
        "parts": [(part.key, part.title, size(part.bytes), percent(part.bytes, whole), part.note) for part in rows],
        "totals": [
            ("capacity", maybe_size(device.capacity_bytes)),
            ("highest of tensors", size(peak.requested_bytes)),
            ("highest allocated", maybe_size(peak.allocated_bytes)),
            ("highest reserved", maybe_size(peak.reserved_bytes)),
        ],
        "left_open": left_open(device),
        "sites": [
            (
                size(site.bytes), percent(site.bytes, device.live_bytes), site.count, site.category.value,
                site_place(site),
            )
            for site in sites[:_CALL_SITES]
        ],
        "more_sites": _more(sites[_CALL_SITES:]),
        "steps": [(step.step, size(step.peak_bytes), size(step.live_bytes)) for step in device.steps],
        "pinned": list(_pinned(device)),
    }  # fmt: skip


def _more(rest: Any) -> str:
    return f"{len(rest)} more lines hold {size(sum(site.bytes for site in rest))}" if rest else ""


def _pinned(device: DeviceProfile) -> Iterator[tuple[str, str, str, str]]:
    """Segments with free bytes that live blocks keep: address, free, live, and who keeps them."""
    event = device.oom.event if device.oom else device.peak.event
    known = {block.address: block for block in device.live}
    for row in pinned(heap(device.snapshot, device.device_snapshot, event, device.live))[:_PINNED]:
        held = [known[block.address] for block in row.holders if block.address in known]
        held.sort(key=lambda block: -block.requested_bytes)
        told = [f"{size(block.requested_bytes)} {category_title(block.category)}" for block in held[:_HOLDERS]]
        more = len(row.holders) - len(told)
        who = ", ".join([*told, f"{more} more"] if more > 0 and told else told) or f"{len(row.holders)} blocks"
        yield f"{row.segment.address:#x}", size(row.free), size(row.live), who


def _all_devices(report: Report) -> list[tuple[str, ...]]:
    """A row per device of every rank, those that failed first: peaks, and what is largest in it."""
    rows: list[tuple[str, ...]] = []
    devices = report.diagnosis.profile.devices
    for device in sorted(devices, key=lambda each: each.oom is None):
        largest = max(device.categories.items(), key=lambda item: item[1].bytes, default=None)
        rows.append(
            (
                device_title(device, report.source.world_size, len(devices)),
                "out of memory" if device.oom else "",
                size(device.peak.requested_bytes),
                maybe_size(device.peak.reserved_bytes),
                size(used_bytes(device)) + (f" of {size(device.capacity_bytes)}" if device.capacity_bytes else ""),
                f"{category_title(largest[0])} {size(largest[1].bytes)}" if largest else "nothing",
            )
        )
    return rows


def _finding(finding: Finding, report: Report) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "confidence": finding.confidence.value,
        "title": finding.title,
        "held": f"{size(finding.bytes)} · {100 * finding.share_of_peak:.0f} %" if finding.bytes else "",
        "evidence": finding.evidence,
        "code_at": [_code(location, report) for location in finding.locations[:3]],
        "remedies": finding.remedies,
    }


def _code(location: Location, report: Report) -> dict[str, Any]:
    excerpt = report.excerpts.get(location)
    lines = []
    if excerpt is not None:
        numbered = enumerate(excerpt.lines, excerpt.first_line)
        lines = [(number, line, number == location.line) for number, line in numbered]
    return {"place": place(location), "lines": lines}


def _plan(plan: Plan, *, out_of_memory: bool) -> dict[str, Any]:
    """Every candidate, also those that do not fit: a page has the room, and says so in the row."""
    able = listed(plan)
    ordered = [*able, *(each for each in plan.candidates if each not in able)]
    rows = [_candidate(number, each) for number, each in enumerate(ordered, 1)]
    return {
        "heading": heading(plan, out_of_memory=out_of_memory) if plan.candidates else "Remedies",
        "first": rows[:_CANDIDATES],
        "more": rows[_CANDIDATES:],
        "way_out": [plan_notes.as_sentence(each) for each in plan.way_out],
        "communication": _communication(plan.communication) if plan.communication else None,
    }


def _candidate(number: int, candidate: Candidate) -> dict[str, Any]:
    estimate = candidate.estimate
    return {
        "number": number,
        "change": change(candidate),
        "predicted": _in_two(band(estimate.predicted_peak_bytes)),
        "verified": _in_two(verified(candidate)),
        "time": _in_two(factor(estimate.step_time_factor)),
        "numerics": estimate.numerics.value,
        "why": estimate.why,
        "spread": estimate.spread,
        "pareto": candidate.pareto,
        "tone": _tone(candidate),
        "seen": candidate.verified is not None,
    }


def _communication(found: Communication) -> dict[str, Any]:
    return {
        "heading": plan_notes.COMMUNICATION,
        "advice": found.advice,
        "heads": plan_notes.HEADS,
        "rows": [plan_notes.row(each) for each in found.exchanges],
        "a_step": list(plan_notes.a_step(found)),
        "reasons": list(plan_notes.reasons(found)),
    }


def _ranks(ranks: Ranks | None) -> dict[str, Any] | None:
    """The ranks that left a summary, those that failed first: all of them, a page has the room."""
    if ranks is None:
        return None
    order = sorted(ranks.summaries, key=lambda each: (not each.out_of_memory, each.rank))
    return {
        "heading": f"Ranks ({len(ranks.summaries)} of {ranks.world_size})",
        "told": ranks.told,
        "heads": [(title, "n" if where == "right" else "") for title, where in rank_table.HEADS],
        "chosen": rank_table.rows(ranks),
        "all": [rank_table.row(each) for each in order] if len(order) > len(rank_table.chosen(ranks)) else [],
    }


def _in_two(text: str) -> tuple[str, str]:
    """`23.70 GiB (23.23 GiB to 24.18 GiB)` as the value and what stands below it in small."""
    value, _, more = text.partition(" (")
    return value, more.removesuffix(")")


def _tone(candidate: Candidate) -> str:
    if candidate.is_over:
        return "bad"
    seen = candidate.verified
    able = candidate.fits if seen is None or seen.error is not None else seen.fits
    return "good" if able else "unsure"


def _gate(gate: Gate | None) -> dict[str, str] | None:
    if gate is None:
        return None
    return {
        "tone": "good" if gate.passed else "bad",
        "word": "passed" if gate.passed else "exceeded",
        "text": "; ".join(sentence(check, gate) for check in failed_checks(gate)) or f"peak {size(gate.peak_bytes)}",
    }


def _log(report: Report) -> tuple[tuple[str, str], ...]:
    if report.log is None or not report.log.logged:
        return ()
    from ..from_log import rows

    return rows(report.log)


def _explained(report: Report) -> list[tuple[str | None, str]]:
    if report.explanation is None or report.plan is not None:
        return []
    from ..explained import lines

    return list(lines(report.explanation))


def _replay(replay: DeviceReplay) -> dict[str, Any]:
    return {
        "heading": replay_heading(replay.device, replay.alloc_conf),
        "rows": [
            ("addresses matched", f"{replay.matched_addresses:,} of {replay.alloc_events:,}"),
            ("segment events matched", f"{replay.matched_segments:,} of {replay.segment_events:,}"),
            ("peak reserved", size(replay.peak_reserved_bytes)),
            ("capacity", maybe_size(replay.capacity_bytes)),
            ("verdict", {True: "fits", False: "does not fit", None: "not known"}[replay.fits]),
        ],
        "notes": [line for line in (replay.departure, *replay.notes) if line],
    }
