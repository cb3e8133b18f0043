"""The ranked table of a plan, and the reasons behind its first rows."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..remedies.interface import Candidate, Plan
from .plan_notes import front, notes
from .shortlist import listed, shortened
from .text import band, change, factor, size

_FITS = {True: ("fits", "green"), False: ("over", "red"), None: ("?", "yellow")}
_ROWS = 12
_REASONS = 3


def remedies(plan: Plan, width: int, full: bool = False) -> Iterator[RenderableType]:
    """A row per candidate, best first; why, for the first ones."""
    if not plan.candidates:
        yield Text("No remedy applies; the reasons are below.", style="dim")
        return
    rows = listed(plan)
    shown = rows if full else shortened(rows, _ROWS)
    yield _table(shown, wide=width >= 110)
    hidden = len(plan.candidates) - len(shown)
    if hidden:
        over = ", those that do not fit among them" if len(rows) < len(plan.candidates) else ""
        yield Text(f"{hidden} more in --format json{over}", style="dim")
    yield from front(shown)
    yield Text("")
    for number, candidate in enumerate(shown[:_REASONS], 1):
        yield Text.assemble((f"{number}. {candidate.name}: ", "bold"), candidate.estimate.why)
        if candidate.estimate.spread:
            yield Text(f"   {candidate.estimate.spread}", style="dim")
    yield from notes(plan)


def _table(candidates: Sequence[Candidate], *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("change", ratio=1, overflow="fold")
    table.add_column("predicted\npeak", justify="right", no_wrap=not wide)
    table.add_column("verified\npeak", justify="right", no_wrap=True)
    table.add_column("step\ntime", justify="right", no_wrap=True)
    table.add_column("numerics", no_wrap=True)
    for number, candidate in enumerate(candidates, 1):
        estimate = candidate.estimate
        peak, time = estimate.predicted_peak_bytes, estimate.step_time_factor
        table.add_row(
            str(number),
            change(candidate),
            _with_fit(band(peak) if wide else size(peak.expected), candidate.fits, candidate.verified is None),
            _verified(candidate),
            factor(time) if wide else f"x{time.expected:.2f}",
            estimate.numerics.value,
        )
    return table


def _verified(candidate: Candidate) -> Text:
    verified = candidate.verified
    if verified is None:
        return Text("not run", style="dim")
    if verified.error is not None:
        return Text("could not run", style="yellow")
    return _with_fit(size(verified.peak_bytes), verified.fits, True)


def _with_fit(text: str, fits: bool | None, decides: bool) -> Text:
    """`text` with the verdict behind it; dim where a later column decides."""
    word, style = _FITS[fits]
    return Text.assemble((text, "" if decides else "dim"), " ", (word, style if decides else "dim"))
