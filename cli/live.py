"""`oomdoc run --live`: one bar a GPU, by category, while the job runs."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..reports.text import moment, size

MOST_RANKS = 16  # rows; the fullest of more
STYLES = {
    "parameter": "blue",
    "gradient": "green",
    "optimizer_state": "magenta",
    "rest": "yellow",
    "cached": "bright_black",
}
_WORDS = {  # of the legend; what is not here is its own word
    "parameter": "parameters",
    "optimizer_state": "optimizer state",
    "gradient": "gradients",
    "rest": "the rest",
}


@contextmanager
def live(stream: TextIO) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Gives the function for the ranks' records. What the script prints goes above the bars."""
    console = Console(file=stream, force_terminal=True)
    board = Board()
    with Live(console=console, refresh_per_second=4, transient=True, get_renderable=lambda: board.draw(console.width)):
        yield board.saw


class Board:
    def __init__(self) -> None:
        self.ranks: dict[int, Mapping[str, Any]] = {}
        self.started = time.monotonic()

    def saw(self, record: Mapping[str, Any]) -> None:
        self.ranks[int(record.get("rank") or 0)] = record

    def draw(self, width: int) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        fullest = sorted(self.ranks.items(), key=lambda each: -int(each[1].get("allocated_bytes") or 0))[:MOST_RANKS]
        for rank, record in sorted(fullest):
            table.add_row(f"rank {rank}", bar(record, max(10, width - 70)), figures(record))
        hidden = len(self.ranks) - len(fullest)
        legend = Text()
        for name, style in STYLES.items():
            legend.append("■ ", style=style).append(f"{_WORDS.get(name, name)}  ")
        more = [Text(f"{hidden} more ranks, with less memory in use", style="dim")] if hidden > 0 else []
        return Group(Text(f"recording, {time.monotonic() - self.started:.0f} s", style="dim"), table, *more, legend)


def figures(record: Mapping[str, Any]) -> str:
    """`step 3, backward · 12.00 GiB, peak 14.00 GiB · 20.00 GiB free`."""
    at = f"request {record['requests']}" if record.get("requests") else moment(record.get("step"), record.get("phase"))
    parts = [at, f"{size(int(record.get('allocated_bytes') or 0))}, peak {size(int(record.get('peak_bytes') or 0))}"]
    if record.get("free_bytes") is not None:
        parts.append(f"{size(int(record['free_bytes']))} free")
    return " · ".join(filter(None, parts))


def bar(record: Mapping[str, Any], width: int) -> Text:
    """The card from end to end: what is held by category, then cached, then free."""
    total = int(record.get("total_bytes") or 0) or max(1, int(record.get("peak_bytes") or 1))
    allocated = int(record.get("allocated_bytes") or 0)
    held = {name: int(value) for name, value in (record.get("parts") or {}).items()}
    shown = {**held, "rest": max(0, allocated - sum(held.values()))}
    shown["cached"] = max(0, int(record.get("reserved_bytes") or 0) - allocated)
    text = Text()
    end = drawn = 0
    for name in STYLES:
        end += shown.get(name, 0)
        cells = min(width, round(width * end / total))
        text.append("█" * max(0, cells - drawn), style=STYLES[name])
        drawn = max(drawn, cells)
    text.append("░" * (width - drawn), style="dim")
    return text
