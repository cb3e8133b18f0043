"""SARIF 2.1.0 (OASIS), for code scanning: a result per finding or exceeded limit, at a line of the user's code.

A rule's help is the page that `oomdoc explain` prints. Paths are relative to the root of the repository.
"""

import inspect
import json
from collections.abc import Sequence
from typing import Any

from .. import __version__
from .issues import FAILED, GATE, Issue, of_report, of_run
from .model import GateRun, Report

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_PAGES = {
    GATE: "A job needs more GPU memory than its budget, its headroom or its baseline allows.",
    FAILED: "A job of the gate could not be recorded, so its memory is not known.",
}


def render(report: Report) -> str:
    return _log(of_report(report))


def render_gate(run: GateRun) -> str:
    return _log(of_run(run))


def _log(issues: Sequence[Issue]) -> str:
    rules = list(dict.fromkeys(issue.rule for issue in issues))
    names = {issue.rule: issue.name for issue in issues}
    driver = {
        "name": "oomdoc",
        "version": __version__,
        "semanticVersion": __version__,
        "informationUri": "https://github.com/oomdoc/oomdoc",
        "rules": [_rule(rule, names[rule]) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {"ROOT": {"description": {"text": "The root of the repository."}}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(issue, rules.index(issue.rule)) for issue in issues],
    }
    content = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _rule(rule: str, name: str) -> dict[str, Any]:
    page = _page(rule)
    return {
        "id": rule,
        "name": "".join(part.capitalize() for part in name.split("-")),
        "shortDescription": {"text": page.split("\n", 1)[0]},
        "fullDescription": {"text": page.split("\n\n", 1)[0].replace("\n", " ")},
        "help": {"text": page, "markdown": page},
        "properties": {"tags": ["gpu-memory"]},
    }


def _page(rule: str) -> str:
    from ..diagnosers.all_causes import DIAGNOSERS

    module = DIAGNOSERS.get(rule)
    return inspect.cleandoc(module.__doc__ or rule) if module is not None else _PAGES.get(rule, rule)


def _result(issue: Issue, index: int) -> dict[str, Any]:
    return {
        "ruleId": issue.rule,
        "ruleIndex": index,
        "level": issue.level,
        "message": {"text": issue.message},
        "locations": [_location(issue)] if issue.file else [],
        "partialFingerprints": {"oomdocLine/1": issue.fingerprint},
    }


def _location(issue: Issue) -> dict[str, Any]:
    from urllib.parse import quote

    assert issue.file is not None
    where: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(issue.file), "uriBaseId": "ROOT"},
            "region": {"startLine": issue.line or 1},
        }
    }
    if issue.function:
        where["logicalLocations"] = [{"name": issue.function, "kind": "function"}]
    return where
