"""The formats of `--format`, each a function of the report."""

from collections.abc import Callable

from . import gate_json, gate_markdown, gate_terminal, github, gitlab, json, junit, markdown, sarif, svg, terminal
from .model import GateRun, Report


def _html(report: Report) -> str:
    from .html import page  # the template engine, which no other format needs

    return page.render(report)


RENDERERS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal.render,
    "json": json.render,
    "markdown": markdown.render,
    "svg": svg.render,
    "html": _html,
    "sarif": sarif.render,
    "junit": junit.render,
    "github": github.render,
    "gitlab": gitlab.render,
}

# The others draw one job: with them a gate of several is refused.
GATE_RENDERERS: dict[str, Callable[[GateRun], str]] = {
    "terminal": gate_terminal.render,
    "json": gate_json.render,
    "markdown": gate_markdown.render,
    "sarif": sarif.render_gate,
    "junit": junit.render_gate,
    "github": github.render_gate,
    "gitlab": gitlab.render_gate,
}
