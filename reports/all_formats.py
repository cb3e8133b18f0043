"""The formats of `--format`, each a function of the report."""

from collections.abc import Callable

from . import json, markdown, svg, terminal
from .model import Report

RENDERERS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal.render,
    "json": json.render,
    "markdown": markdown.render,
    "svg": svg.render,
}
