"""The memory of one device as a bar and a legend: colour where there is some, other fills where there is none."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..diagnosers.interface import DeviceProfile
from .figures import Part, parts
from .palette import COLORS
from .text import maybe_size, percent, size

_FULL = "█"  # colour tells the parts apart
_FILLS = "█▓▒░"
_FREE = "·"
_EIGHTHS = "▏▎▍▌▋▊▉█"


def memory(profile: DeviceProfile, width: int, *, color: bool = False) -> Iterator[RenderableType]:
    """The bar over the whole capacity, then a row per part: bytes, share, its own small bar, what is known of it."""
    rows = parts(profile)
    whole = sum(part.bytes for part in rows)
    if not whole:
        yield Text("Nothing was allocated.", style="dim")
        return
    fills = _FULL if color else _FILLS
    yield stacked(rows, whole, width, fills)
    yield Text("")
    yield _legend(rows, whole, fills, bar=0 if width < 72 else 16 if width < 100 else 32)
    yield Text(_totals(profile), style="dim")


def stacked(rows: tuple[Part, ...], whole: int, width: int, fills: str = _FILLS) -> Text:
    """One line of exactly `width` cells; a part is drawn from the cell its first byte falls in."""
    bar = Text(no_wrap=True, overflow="crop")
    done = 0
    for index, part in enumerate(rows):
        start, done = round(width * done / whole), done + part.bytes
        cells = round(width * done / whole) - start
        fill = _FREE if part.key == "free" else fills[index % len(fills)]
        bar.append(fill * cells, style=COLORS.get(part.key, ""))
    return bar


def _legend(rows: tuple[Part, ...], whole: int, fills: str, *, bar: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    if bar:
        table.add_column(width=bar, no_wrap=True)
    table.add_column(style="dim", ratio=1)
    largest = max(part.bytes for part in rows)
    for index, part in enumerate(rows):
        style = COLORS.get(part.key, "")
        fill = _FREE if part.key == "free" else fills[index % len(fills)]
        cells: list[RenderableType] = [
            Text.assemble((fill, style), " ", part.title),
            Text(size(part.bytes)),
            Text(percent(part.bytes, whole)),
        ]
        if bar:
            cells.append(Text(_small_bar(part.bytes, largest, bar), style=style))
        table.add_row(*cells, Text(part.note))
    return table


def _small_bar(count: int, largest: int, cells: int) -> str:
    eighths = max(1, round(8 * cells * count / largest))
    full, rest = divmod(eighths, 8)
    return _EIGHTHS[-1] * full + (_EIGHTHS[rest - 1] if rest else "")


def _totals(profile: DeviceProfile) -> str:
    """The capacity, and the maxima of the whole run: each has its own moment, and none need be that of the bar."""
    peak = profile.peak
    told = [f"{size(peak.requested_bytes)} of tensors"]
    if peak.allocated_bytes is not None:
        told.append(f"{size(peak.allocated_bytes)} allocated")
    if peak.reserved_bytes is not None:
        told.append(f"{size(peak.reserved_bytes)} reserved")
    own = ", each at its own moment" if len(told) > 1 else ""
    return f"capacity {maybe_size(profile.capacity_bytes)} · highest of the whole run{own}: {' · '.join(told)}"
