"""GitLab's code quality report: the subset of the Code Climate format that its documentation asks for.

An array of `description`, `check_name`, `fingerprint`, `severity`, and `location` with `path` and `lines.begin`. GitLab
shows nothing without a path: an issue of no line of the repository is shown at `.`.
"""

import json
from collections.abc import Sequence
from typing import Any

from .issues import Issue, of_report, of_run
from .model import GateRun, Report

_SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}


def render(report: Report) -> str:
    return _array(of_report(report))


def render_gate(run: GateRun) -> str:
    return _array(of_run(run))


def _array(issues: Sequence[Issue]) -> str:
    return json.dumps([_entry(issue) for issue in issues], indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _entry(issue: Issue) -> dict[str, Any]:
    return {
        "type": "issue",
        "categories": ["Performance"],
        "description": issue.message,
        "check_name": f"{issue.rule} {issue.name}",
        "fingerprint": issue.fingerprint,
        "severity": _SEVERITIES[issue.level],
        "location": {"path": issue.file or ".", "lines": {"begin": issue.line or 1}},
    }
