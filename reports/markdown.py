"""The report as GitHub-flavoured Markdown, for pull requests, step summaries and issues."""

from collections.abc import Iterable

from ..diagnosers.interface import DeviceProfile, Finding
from ..remedies.interface import Plan
from . import cards
from .figures import assumed, grouped, left_open, parts
from .headline import assumed_heading, facts, headline, memory_heading
from .json import inconclusive
from .model import DeviceReplay, Report
from .shortlist import heading, listed, verified
from .text import CONTROLS, band, change, factor, percent, place, short_path, site_place, size

_CALL_SITES = 10


def render(report: Report) -> str:
    """The whole report; every string of the snapshot is escaped."""
    blocks = [_verdict(report)]
    if report.gate is not None:
        blocks += _gate(report)
    for device in report.diagnosis.profile.devices:
        blocks += _device(report, device)
    if report.ranks is not None:
        blocks += ["### Ranks", "\n".join(f"- {inert(line)}" for line in report.ranks.told)]
    if report.cards:
        told = (f"- {inert(cards.sentence(card))}" for card in cards.shown(report.cards))
        blocks += [f"### {cards.TITLE}", "\n".join(told)]
    if report.log is not None and report.log.logged:
        from .from_log import rows

        blocks.append("### What the log says")
        blocks.append("\n".join(f"- {inert(where)} {inert(what)}" for where, what in rows(report.log)))
    blocks += [_replay(replay) for replay in report.replays]
    if report.explanation is not None and report.plan is None:
        from .explained import lines as explained

        blocks.append("### Explained")
        told = (f"**{word}:** {inert(text)}" if word else inert(text) for word, text in explained(report.explanation))
        blocks.append("\n".join(f"- {line}" for line in told))
    if report.diagnosis.findings:
        blocks.append("### Causes")
        blocks += [_finding(finding, report) for finding in report.diagnosis.findings]
    if report.plan is not None:
        blocks.append(_plan(report.plan, out_of_memory=report.verdict.out_of_memory))
    lines = assumed(report.diagnosis.profile)
    if lines:
        blocks.append(f"### {assumed_heading(report)}")
        blocks.append("\n".join(f"- {inert(line)}" for line in lines))
    reasons = inconclusive(report)
    if reasons:
        blocks.append("### Could not tell")
        blocks.append("\n".join(f"- `{inline_code(each['code'])}`: {inert(each['reason'])}" for each in reasons))
    if report.next_commands:
        blocks.append("### Next")
        blocks.append("\n".join(["```sh", *report.next_commands, "```"]))
    return "\n\n".join(blocks) + "\n"


def _verdict(report: Report) -> str:
    told = [f"`{inline_code(short_path(report.source.path))}`", *map(inert, facts(report))]
    return f"## {inert(headline(report))}\n\n{inert(report.verdict.summary)}\n\n{' · '.join(told)}"


def _gate(report: Report) -> list[str]:
    from .gate_markdown import failed
    from .gate_text import headline as verdict
    from .model import GateRun, Judged

    assert report.gate is not None
    judged = Judged(name=report.gate.job, report=report)
    head = f"**{verdict(GateRun(jobs=(judged,)))}**: peak {size(report.gate.peak_bytes)}."
    return [head] if report.gate.passed else [head, *failed(report.gate, judged)]


def _device(report: Report, device: DeviceProfile) -> list[str]:
    rows = parts(device)
    whole = sum(part.bytes for part in rows)
    memory = table(
        ("memory", "bytes", "share", ""),
        ((inert(part.title), size(part.bytes), percent(part.bytes, whole), part.note) for part in rows),
        right=(1, 2),
    )
    blocks = [f"### {inert(memory_heading(report, device))}", memory]
    told = left_open(device)
    if told:
        blocks.append(" ".join(told))
    if device.call_sites:
        blocks += ["### Held by", _call_sites(device)]
    return blocks


def _call_sites(device: DeviceProfile) -> str:
    rows = (
        (size(site.bytes), percent(site.bytes, device.live_bytes), str(site.count), site.category.value,
         f"`{inline_code(site_place(site))}`")
        for site in grouped(device.call_sites)[:_CALL_SITES]
    )  # fmt: skip
    return table(("bytes", "share", "blocks", "for", "line"), rows, right=(0, 1, 2))


def _finding(finding: Finding, report: Report) -> str:
    lines = [f"**{finding.code} {inert(finding.name)}** ({finding.severity.value}, {finding.confidence.value}): "
             f"{inert(finding.title)}", ""]  # fmt: skip
    lines += [f"- {inert(line)}" for line in finding.evidence]
    for location in finding.locations[:3]:
        lines.append(f"- `{inline_code(place(location))}`")
        excerpt = report.excerpts.get(location)
        if excerpt is not None:
            line = excerpt.lines[location.line - excerpt.first_line].strip()
            lines[-1] += f": `{inline_code(line)}`"
    if finding.remedies:
        lines.append(f"- try: {', '.join(finding.remedies)}")
    return "\n".join(lines)


def _plan(plan: Plan, *, out_of_memory: bool) -> str:
    if not plan.candidates:
        return "### Remedies\n\nNo remedy applies; the reasons are below."
    rows = (
        (
            inert(change(each)),
            band(each.estimate.predicted_peak_bytes),
            verified(each),
            factor(each.estimate.step_time_factor),
            each.estimate.numerics.value,
            inert(each.estimate.why),
        )
        for each in listed(plan)
    )
    header = ("change", "predicted peak", "verified peak", "step time", "numerics", "why")
    return f"### {heading(plan, out_of_memory=out_of_memory)}\n\n{table(header, rows, right=(1, 2, 3))}"


def _replay(replay: DeviceReplay) -> str:
    rows = [
        ("addresses matched", f"{replay.matched_addresses} of {replay.alloc_events}"),
        ("segment events matched", f"{replay.matched_segments} of {replay.segment_events}"),
        ("peak reserved", size(replay.peak_reserved_bytes)),
        ("verdict", {True: "fits", False: "does not fit", None: "capacity not known"}[replay.fits]),
    ]
    under = f" under `{inline_code(replay.alloc_conf)}`" if replay.alloc_conf else ""
    notes = "".join(f"\n\n{inert(line)}" for line in [replay.departure, *replay.notes] if line)
    return f"### Replay of device {replay.device}{under}\n\n{table(('', ''), rows)}{notes}"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], right: tuple[int, ...] = ()) -> str:
    lines = [
        f"| {' | '.join(header)} |",
        "|" + "|".join("--:" if index in right else "---" for index in range(len(header))) + "|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def inert(text: str) -> str:
    """Markdown and HTML that a file or function name may carry, made inert."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.translate(CONTROLS).split())


def inline_code(text: str) -> str:
    """For use between backticks inside a table cell."""
    return " ".join(text.translate(CONTROLS).replace("`", "'").replace("|", "¦").split())
