"""The terminal report as a picture (SVG), for a README, an issue or a slide: nothing is loaded from outside."""

import io
import re

from rich.console import Console
from rich.text import Text

from . import terminal
from .model import Report

WIDTH = 100
WEB_FONT = re.compile(r"@font-face\s*\{[^}]*\}\s*")  # rich's template would fetch them; the style names a fallback


def render(report: Report) -> str:
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(terminal.render(report, width=WIDTH, color="truecolor")))
    return WEB_FONT.sub("", console.export_svg(title="oomdoc"))
