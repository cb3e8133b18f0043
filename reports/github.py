"""Annotations, as GitHub Actions reads them from a step's output.

    ::error file=train.py,line=12,title=OOM004 activations-dominate::24.10 GiB of activations ...

GitHub shows ten of a kind for each step; what matters most comes first.
"""

from collections.abc import Sequence

from .issues import Issue, of_report, of_run
from .model import GateRun, Report
from .text import CONTROLS

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def render(report: Report) -> str:
    """A report without any issue is one notice, so that the step says what it saw."""
    found = of_report(report)
    if not found:
        return f"::notice title=oomdoc::{_data(report.verdict.summary)}\n"
    return _lines(found)


def render_gate(run: GateRun) -> str:
    from .gate_text import headline, job_row

    found = of_run(run)
    if not found:
        told = "; ".join(" ".join(filter(None, job_row(job))) for job in run.jobs)
        return f"::notice title=oomdoc::{_data(f'{headline(run)}: {told}')}\n"
    return _lines(found)


def _lines(issues: Sequence[Issue]) -> str:
    return "".join(f"::{_COMMANDS[issue.level]} {_properties(issue)}::{_data(issue.message)}\n" for issue in issues)


def _properties(issue: Issue) -> str:
    told = {"file": issue.file, "line": str(issue.line) if issue.line else None, "title": f"{issue.rule} {issue.name}"}
    return ",".join(f"{key}={_property(value)}" for key, value in told.items() if value)


def _data(text: str) -> str:
    """The escapes of actions/toolkit, packages/core/src/command.ts: escapeData."""
    clean = text.replace("\r", " ").replace("\n", " ").translate(CONTROLS)
    return clean.replace("%", "%25")


def _property(text: str) -> str:
    """escapeProperty of the same file."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
