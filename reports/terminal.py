"""The report for people at a terminal: verdict, memory by category, causes with code, remedies, what to type next."""

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..diagnosers.interface import DeviceProfile, Finding, Location, Severity
from .bars import memory
from .canvas import draw
from .figures import assumed, grouped, left_open
from .headline import assumed_heading, facts, headline, memory_heading, replay_heading
from .json import inconclusive
from .model import DeviceReplay, Excerpt, Report
from .remedy_table import remedies
from .shortlist import heading
from .text import maybe_size, percent, place, short_path, site_place, size

_SEVERITY_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold blue"}
_CALL_SITES = 8
_LOCATIONS = 3
_ASSUMPTIONS = 8


def render(
    report: Report, *, width: int = 80, color: str | None = None, ascii_only: bool = False, full: bool = False
) -> str:
    """The report as text, `width` columns wide; coloured ("256", "truecolor"), in ASCII, with every row, if asked."""
    return draw(lambda console: _body(report, console, full), width=width, color=color, ascii_only=ascii_only)


def _body(report: Report, console: Console, full: bool) -> Iterator[RenderableType]:
    yield _verdict(report)
    if report.gate is not None:
        yield from _gate(report, full)
    for device in report.diagnosis.profile.devices:
        yield from _device(report, device, console, full)
    yield from _rank_section(report)
    yield from _cards(report)
    yield from _log(report)
    for replay in report.replays:
        yield from _replay(replay)
    yield from _explained(report)
    if report.diagnosis.findings:
        yield _heading("Causes")
        for number, finding in enumerate(report.diagnosis.findings, 1):
            if number > 1 and report.plan is None:
                yield Text("")
            yield _finding(number, finding, report)
    if report.plan is not None:
        yield _heading(heading(report.plan, out_of_memory=report.verdict.out_of_memory))
        yield from remedies(report.plan, console.width, full)
    yield from _assumed(report, full)
    yield from _reasons(report)
    yield from _next(report)


def _verdict(report: Report) -> RenderableType:
    line = Text.assemble(_headline(report), "  ", (" · ".join(facts(report)), "dim"))
    return Group(line, Text(report.verdict.summary), Text(short_path(report.source.path), style="dim"))


def _headline(report: Report) -> Text:
    """Green is only what ran to its end and fits in memory."""
    verdict = report.verdict
    words = headline(report).upper() if verdict.ended is None else f"THE SCRIPT ENDED EARLY ({verdict.ended})"
    unsure = verdict.ended is not None or (verdict.device is None and report.source.kind != "log")
    return Text(f"● {words}", style="bold red" if verdict.out_of_memory else "bold yellow" if unsure else "bold green")


def _rank_section(report: Report) -> Iterator[RenderableType]:
    if report.ranks is None:
        return
    from .rank_table import HEADS, rows

    yield _heading(f"Ranks ({len(report.ranks.summaries)} of {report.ranks.world_size})")
    yield Group(*(Text(f"· {line}") for line in report.ranks.told))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title, where in HEADS:
        table.add_column(title, justify=where, no_wrap=True)
    for row in rows(report.ranks):
        table.add_row(*row)
    yield table


def _cards(report: Report) -> Iterator[RenderableType]:
    if not report.cards:
        return
    from .cards import TITLE, sentence, shown

    yield _heading(TITLE)
    yield Group(*(Text(f"· {sentence(card)}") for card in shown(report.cards)))


def _gate(report: Report, full: bool) -> Iterator[RenderableType]:
    from .gate_terminal import failed
    from .model import Judged

    gate = report.gate
    assert gate is not None
    style, word = ("bold green", "passed") if gate.passed else ("bold red", "exceeded")
    yield Text.assemble((f"Gate {word}: ", style), f"peak {size(gate.peak_bytes)}")
    if not gate.passed:
        yield from failed(gate, Judged(name=gate.job, report=report), full=full)


def _device(report: Report, device: DeviceProfile, console: Console, full: bool) -> Iterator[RenderableType]:
    yield _heading(memory_heading(report, device))
    yield from memory(device, console.width, color=console.color_system is not None)
    yield from (Text(each, style="dim") for each in left_open(device))
    if device.call_sites and report.plan is None:
        yield _heading("Held by")
        yield _call_sites(device, full)


def _log(report: Report) -> Iterator[RenderableType]:
    if report.log is None or not report.log.logged:
        return
    from .from_log import rows

    yield _heading("What the log says")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1)
    for where, what in rows(report.log):
        table.add_row(Text(where), Text(what))
    yield table


def _explained(report: Report) -> Iterator[RenderableType]:
    if report.explanation is None or report.plan is not None:
        return
    from .explained import lines

    yield _heading("Explained")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1)
    for word, text in lines(report.explanation):
        table.add_row(word, Text(text))
    yield table


def _call_sites(device: DeviceProfile, full: bool) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("blocks", justify="right", no_wrap=True)
    table.add_column("for", no_wrap=True)
    table.add_column("line", ratio=1, overflow="fold")
    sites = grouped(device.call_sites)
    most = len(sites) if full else _CALL_SITES
    for site in sites[:most]:
        share = percent(site.bytes, device.live_bytes)
        table.add_row(size(site.bytes), share, str(site.count), site.category.value, site_place(site))
    rest = sites[most:]
    if rest:
        held = sum(site.bytes for site in rest)
        table.add_row(
            size(held), percent(held, device.live_bytes), str(sum(site.count for site in rest)), "", f"{len(rest)} more"
        )
    return table


def _finding(number: int, finding: Finding, report: Report) -> RenderableType:
    style = _SEVERITY_STYLE[finding.severity]
    share = f" · {100 * finding.share_of_peak:.0f} %" if finding.bytes else ""
    held = f"  {size(finding.bytes)}{share}" if finding.bytes else ""
    head = Text.assemble(
        (f"{number}. {finding.code} {finding.name}", style), (held, "bold"), (f"  {finding.confidence.value}", "dim")
    )
    body: list[RenderableType] = [Text(finding.title)]
    if report.plan is not None:  # who asks for a plan has seen the evidence, or finds it with `analyze`
        return Group(head, Padding(body[0], (0, 0, 0, 3)))
    body += [Text(f"· {line}", style="dim") for line in finding.evidence]
    body += [_code(location, report.excerpts.get(location)) for location in finding.locations[:_LOCATIONS]]
    if finding.remedies:
        body.append(Text.assemble(("try: ", "dim"), (", ".join(finding.remedies), "green")))
    return Group(head, Padding(Group(*body), (0, 0, 0, 3)))


def _code(location: Location, excerpt: Excerpt | None) -> RenderableType:
    head = Text(place(location), style="cyan")
    if excerpt is None:
        return head
    last = excerpt.first_line + len(excerpt.lines) - 1
    rows = []
    for offset, line in enumerate(excerpt.lines):
        number = excerpt.first_line + offset
        here = number == location.line
        row = Text.assemble((f"{'>' if here else ' '} {number:>{len(str(last))}} │ ", "dim"), line)
        row.truncate(200)
        row.no_wrap = True
        row.overflow = "ellipsis"
        if here:
            row.stylize("bold")
        rows.append(row)
    return Group(head, *rows)


def _replay(replay: DeviceReplay) -> Iterator[RenderableType]:
    yield _heading(replay_heading(replay.device, replay.alloc_conf))
    table = Table.grid(padding=(0, 2))
    table.add_row("addresses matched", f"{replay.matched_addresses:,} of {replay.alloc_events:,}")
    table.add_row("segment events matched", f"{replay.matched_segments:,} of {replay.segment_events:,}")
    table.add_row("peak reserved", size(replay.peak_reserved_bytes))
    table.add_row("capacity", maybe_size(replay.capacity_bytes))
    fits = {True: Text("fits", style="green"), False: Text("does not fit", style="red"), None: Text("not known")}
    table.add_row("verdict", fits[replay.fits])
    yield table
    for line in [replay.departure, *replay.notes]:
        if line:
            yield Text(line, style="dim")


def _assumed(report: Report, full: bool) -> Iterator[RenderableType]:
    lines = assumed(report.diagnosis.profile)
    if not lines:
        return
    yield _heading(assumed_heading(report))
    most = len(lines) if full else _ASSUMPTIONS
    yield Group(*(Text(f"· {line}", style="dim") for line in lines[:most]))
    if len(lines) > most:
        yield Text(f"{len(lines) - most} more with --verbose", style="dim")


def _reasons(report: Report) -> Iterator[RenderableType]:
    reasons = inconclusive(report)
    if not reasons:
        return
    yield _heading("Could not tell")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", max_width=28, overflow="fold")
    table.add_column(ratio=1, style="dim")
    for each in reasons:
        table.add_row(each["code"], each["reason"])
    yield table


def _next(report: Report) -> Iterator[RenderableType]:
    if not report.next_commands:
        return
    yield _heading("Next")
    for command in report.next_commands:
        line = Text.assemble(("$ ", "dim"), (command, "bold"))
        line.no_wrap = True  # a wrapped command cannot be pasted
        line.overflow = "ignore"
        yield line


def _heading(title: str) -> RenderableType:
    return Group(Text(""), Rule(Text(title, style="bold"), align="left", style="dim", characters="─"))
