"""A comparison for people at a terminal: the sentence, the categories, the lines, the block sizes."""

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..diagnosers.compare import DeviceComparison
from .canvas import draw
from .diff_text import counts, notes, ratio, signed, states, summary, title, where
from .model import Diff
from .text import category_title, short_path, size

_LINES, _SIZES, _RENAMED = 12, 6, 4


def render(
    diff: Diff, *, width: int = 80, color: str | None = None, ascii_only: bool = False, full: bool = False
) -> str:
    """As text, `width` columns wide; coloured ("256", "truecolor"), in ASCII, with every row, if asked."""
    return draw(lambda console: _body(diff, console, full), width=width, color=color, ascii_only=ascii_only)


def _body(diff: Diff, console: Console, full: bool) -> Iterator[RenderableType]:
    yield Text(f"before  {short_path(diff.before_path)}", style="dim")
    yield Text(f"after   {short_path(diff.after_path)}", style="dim")
    if not diff.comparison.devices:
        yield Text("No device is in both recordings.")
    for device in diff.comparison.devices:
        yield from _device(device, title(device, diff), full)
    reasons = notes(diff)
    if reasons:
        yield _heading("To be read with care")
        yield Group(*(Text(f"· {code}: {reason}", style="dim") for code, reason in reasons))


def _device(device: DeviceComparison, name: str, full: bool) -> Iterator[RenderableType]:
    yield _heading(f"Memory change{f' ({name})' if name else ''}")
    style = {1: "bold red", -1: "bold green", 0: "bold"}[(device.bytes > 0) - (device.bytes < 0)]
    yield Text(summary(device), style=style)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    for row in (("", "before", "after"), *states(device)):
        table.add_row(*map(Text, row))
    yield table
    if device.categories:
        yield _heading("By category")
        yield _categories(device)
    if device.moved:
        yield _heading("By line")
        yield _lines(device, full)
    if device.sizes:
        yield _heading("By block size")
        yield _sizes(device, full)
    yield from _renamed(device, full)


def _categories(device: DeviceComparison) -> RenderableType:
    table = _table("change", "", "before", "after", "for")
    for row in device.categories:
        numbers = (signed(row.bytes), ratio(row.before_bytes, row.after_bytes), size(row.before_bytes),
                   size(row.after_bytes))  # fmt: skip
        table.add_row(*numbers, category_title(row.category))
    return table


def _lines(device: DeviceComparison, full: bool) -> RenderableType:
    table = _table("change", "", "blocks", "for", "line")
    most = len(device.moved) if full else _LINES
    for row in device.moved[:most]:
        numbers = (signed(row.bytes), ratio(row.before_bytes, row.after_bytes),
                   counts(row.before_count, row.after_count))  # fmt: skip
        table.add_row(*numbers, row.site.category.value, Text(where(row)))
    rest = device.moved[most:]
    if rest:
        table.add_row(signed(sum(row.bytes for row in rest)), "", "", "", f"{len(rest)} more with --verbose")
    return table


def _sizes(device: DeviceComparison, full: bool) -> RenderableType:
    table = _table("change", "", "blocks", "for", "each")
    most = len(device.sizes) if full else _SIZES
    for row in device.sizes[:most]:
        numbers = (signed(row.bytes), ratio(row.before_count, row.after_count),
                   counts(row.before_count, row.after_count))  # fmt: skip
        table.add_row(*numbers, row.category.value, size(row.size_bytes))
    rest = device.sizes[most:]
    if rest:
        table.add_row(signed(sum(row.bytes for row in rest)), "", "", "", f"{len(rest)} more with --verbose")
    return table


def _renamed(device: DeviceComparison, full: bool) -> Iterator[RenderableType]:
    if not device.renamed:
        return
    yield _heading("Moved in the code, the same blocks")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    most = len(device.renamed) if full else _RENAMED
    for row in device.renamed[:most]:
        table.add_row(size(row.after_bytes), Text(where(row)))
    if len(device.renamed) > most:
        table.add_row("", f"{len(device.renamed) - most} more with --verbose")
    yield table


def _table(*header: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in header[:-1]:
        table.add_column(name, justify="left" if name == "for" else "right", no_wrap=True)
    table.add_column(header[-1], ratio=1, overflow="fold")
    return table


def _heading(text: str) -> RenderableType:
    return Group(Text(""), Rule(Text(text, style="bold"), align="left", style="dim", characters="─"))
