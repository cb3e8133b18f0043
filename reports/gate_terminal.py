"""The gate for people at a terminal: a row per job; for what failed, what moved and the first remedy."""

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..gates.interface import Gate
from .canvas import draw
from .diff_text import ratio, signed
from .gate_text import (
    MOST_LINES,
    changed,
    failed_checks,
    headline,
    held_row,
    job_row,
    line_row,
    only_baseline,
    remedy_sentence,
    sentence,
)
from .model import GateRun, Judged
from .text import category_title, size


def render(
    run: GateRun, *, width: int = 80, color: str | None = None, ascii_only: bool = False, full: bool = False
) -> str:
    """The verdict as text, `width` columns wide; coloured ("256", "truecolor"), in ASCII, with every row, if asked."""
    return draw(lambda console: _body(run, console, full), width=width, color=color, ascii_only=ascii_only)


def _body(run: GateRun, console: Console, full: bool) -> Iterator[RenderableType]:
    yield Text(f"● {headline(run)}", style="bold green" if run.passed else "bold red")
    yield _jobs(run, console.width)
    for job in run.jobs:
        if job.gate is None:
            yield _heading(job.name)
            yield Text(job.failure or "")
        elif not job.gate.passed:
            yield from failed(job.gate, job, full=full)
        elif job.gate.notes:
            yield Text(f"{job.name}: {'; '.join(job.gate.notes)}", style="dim")
    if run.next_commands:
        yield _heading("Next")
        for command in run.next_commands:
            yield Text.assemble(("$ ", "dim"), (command, "bold"), no_wrap=True, overflow="ignore")


def _jobs(run: GateRun, width: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("job", overflow="fold")
    table.add_column("GPU", overflow="fold")
    for name in ("peak", "limit", "against baseline"):
        table.add_column(name, justify="right", no_wrap=width >= 80)
    for job in run.jobs:
        good = job.gate is not None and job.gate.passed
        table.add_row(Text("✓" if good else "✗", style="green" if good else "bold red"), *map(Text, job_row(job)))
    return table


def failed(gate: Gate, job: Judged, *, full: bool) -> Iterator[RenderableType]:
    """What is wrong with one job."""
    yield _heading(gate.job)
    for check in failed_checks(gate):
        yield Text(sentence(check, gate), style="bold red")
    for note in gate.notes:
        yield Text(f"note: {note}", style="yellow")
    if only_baseline(gate):
        return
    if gate.changes:
        yield Text("changed since the baseline was committed:", style="dim")
        yield Group(*(Text(f"  {each}", style="bold") for each in changed(gate)))
    if gate.moved:
        yield _categories(gate)
        yield _rows(("change", "", "for", "line"), [line_row(row) for row in gate.moved], full)
    else:
        yield _rows(("bytes", "for", "line"), [held_row(line) for line in gate.held], full)
    report = job.report
    if report is not None and report.diagnosis.findings:
        first = report.diagnosis.findings[0]
        yield Text.assemble(("cause: ", "dim"), (f"{first.code} {first.name}", "bold"), f"  {first.title}")
    yield Text.assemble(("remedy: ", "dim"), remedy_sentence(gate))


def _categories(gate: Gate) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("change", "", "before", "after"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("for")
    for row in gate.categories:
        numbers = (signed(row.bytes), ratio(row.before_bytes, row.after_bytes))
        table.add_row(*numbers, size(row.before_bytes), size(row.after_bytes), category_title(row.category))
    return Padding(table, (0, 0, 1, 0))


def _rows(header: tuple[str, ...], rows: list[tuple[str, ...]], full: bool) -> RenderableType:
    """The last cell of a row is code, which goes below its place."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in header[:-1]:
        table.add_column(name, justify="left" if name == "for" else "right", no_wrap=True)
    table.add_column(header[-1], ratio=1, overflow="fold")
    most = len(rows) if full else MOST_LINES
    for row in rows[:most]:
        *cells, where, code = row
        shown = Group(Text(where), Text(code, style="italic dim")) if code else Text(where)
        table.add_row(*map(Text, cells), shown)
    if len(rows) > most:
        table.add_row(*[""] * (len(header) - 1), Text(f"{len(rows) - most} more with --verbose", style="dim"))
    return Padding(table, (0, 0, 1, 0))


def _heading(title: str) -> RenderableType:
    return Group(Text(""), Rule(Text(title, style="bold"), align="left", style="dim", characters="─"))
