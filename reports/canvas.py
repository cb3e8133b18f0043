"""One place where rich draws to a string, so that width, colour and character set are the caller's."""

import io
from collections.abc import Callable, Iterable
from typing import Any, cast

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.theme import Theme

from .text import CONTROLS

# Every character outside ASCII that the terminal report itself draws, and what stands for it on a terminal without it.
_ASCII = str.maketrans(
    {
        "●": "*", "─": "-", "│": "|", "·": "-", "█": "#", "▉": "#", "▊": "#", "▋": "=", "▌": "=", "▍": "=",
        "▎": "-", "▏": "-", "▓": "%", "▒": "+", "░": ":", "■": "#", "✓": "y", "✗": "n", "…": ".",
        "╺": "-", "━": "=",
    }
)  # fmt: skip


def draw(
    body: Callable[[Console], Iterable[RenderableType]], *, width: int, color: str | None, ascii_only: bool = False
) -> str:
    """What `body` yields, as text with a newline at its end; no line has trailing blanks unless it is coloured.

    `color` is a colour system of rich ("256", "truecolor"), or None.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(40, width),
        force_terminal=color is not None,
        no_color=color is None,
        color_system=cast(Any, color),
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
        theme=Theme({"rule.line": "dim"}),
    )
    for part in body(console):
        drawn = [Segment(segment.text.translate(CONTROLS), segment.style) for segment in console.render(part)]
        console.print(Segments(drawn), end="", crop=False, overflow="ignore")
    text = out.getvalue()
    if color is None:
        text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii") if ascii_only else text
