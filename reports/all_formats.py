"""The formats of `--format`, each a function of the report."""

from collections.abc import Callable

from . import json, markdown, svg, terminal
from .model import Report


def _html(report: Report) -> str:
    from .html import page  # the template engine, which no other format needs

    return page.render(report)


RENDERERS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal.render,
    "json": json.render,
    "markdown": markdown.render,
    "svg": svg.render,
    "html": _html,
}
