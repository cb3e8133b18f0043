"""The formats of `--format`, each a function of the report."""

from collections.abc import Callable

from . import gate_json, gate_markdown, gate_terminal, github, gitlab, json, junit, markdown, sarif, svg, terminal
from .model import GateRun, Report


def _html(report: Report) -> str:
    from .html import page  # the template engine, which no other format needs

    return page.render(report)


def _perfetto(report: Report) -> str:
    from .exports import perfetto

    return perfetto.render(report)


def _speedscope(report: Report) -> str:
    from .exports import flame

    return flame.speedscope(report)


def _collapsed(report: Report) -> str:
    from .exports import flame

    return flame.collapsed(report)


def _csv(report: Report) -> str:
    from .exports import tables

    return tables.csv_table(report)


def _parquet(report: Report) -> bytes:
    from .exports import tables

    return tables.parquet(report)


def _snapshot(report: Report) -> bytes:
    from .exports import torch_snapshot

    return torch_snapshot.render(report)


RENDERERS: dict[str, Callable[[Report], str | bytes]] = {
    "terminal": terminal.render,
    "json": json.render,
    "markdown": markdown.render,
    "svg": svg.render,
    "html": _html,
    "sarif": sarif.render,
    "junit": junit.render,
    "github": github.render,
    "gitlab": gitlab.render,
    "perfetto": _perfetto,
    "speedscope": _speedscope,
    "collapsed": _collapsed,
    "csv": _csv,
    "parquet": _parquet,
    "snapshot": _snapshot,
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
