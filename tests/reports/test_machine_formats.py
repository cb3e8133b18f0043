"""SARIF, JUnit, GitHub and GitLab: valid, at lines of the repository, and inert whatever a name carries.

The validators below are written from the published schemas (OASIS sarif-schema-2.1.0, Jenkins' junit-10.xsd, GitLab's
documentation of its code quality report): every property that is used here, and no other.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from oomdoc.diagnosers.interface import Location
from oomdoc.gates.interface import Gate, Line
from oomdoc.reports import github, gitlab, junit, sarif
from oomdoc.reports.issues import repository_place
from oomdoc.reports.model import GateRun, Judged, Report

HOSTILE = "a\n::set-output name=x::y\r%0A,b:c\x1b[31m\u202e\x00]]><script>"


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT = {"type": "string"}
MESSAGE = closed({"text": TEXT, "markdown": TEXT}, "text")
RULE = closed(
    {"id": TEXT, "name": TEXT, "shortDescription": MESSAGE, "fullDescription": MESSAGE, "help": MESSAGE,
     "properties": {"type": "object", "properties": {"tags": {"type": "array", "items": TEXT, "uniqueItems": True}}}},
    "id",
)  # fmt: skip
LOCATION = closed(
    {
        "physicalLocation": closed(
            {
                "artifactLocation": closed(
                    {"uri": {"type": "string", "format": "uri-reference", "pattern": "^[^ /]"}, "uriBaseId": TEXT},
                    "uri",
                ),
                "region": closed({"startLine": {"type": "integer", "minimum": 1}}, "startLine"),
            },
            "artifactLocation",
        ),
        "logicalLocations": {"type": "array", "items": closed({"name": TEXT, "kind": TEXT})},
    }
)
RESULT = closed(
    {
        "ruleId": TEXT,
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": MESSAGE,
        "locations": {"type": "array", "items": LOCATION},
        "partialFingerprints": {"type": "object", "additionalProperties": TEXT},
    },
    "message",
)
DRIVER = closed(
    {"name": TEXT, "version": TEXT, "semanticVersion": TEXT, "informationUri": {"type": "string", "format": "uri"},
     "rules": {"type": "array", "items": RULE, "uniqueItems": True}},
    "name",
)  # fmt: skip
SARIF = closed(
    {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": closed(
                {
                    "tool": closed({"driver": DRIVER}, "driver"),
                    "originalUriBaseIds": {"type": "object"},
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {"type": "array", "items": RESULT},
                },
                "tool",
            ),
        },
    },
    "version",
    "runs",
)
GITLAB = {
    "type": "array",
    "items": closed(
        {
            "type": {"const": "issue"},
            "categories": {"type": "array", "items": TEXT},
            "description": TEXT,
            "check_name": TEXT,
            "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": closed(
                {
                    "path": {"type": "string", "pattern": "^[^/]"},
                    "lines": closed({"begin": {"type": "integer", "minimum": 1}}, "begin"),
                },
                "path",
                "lines",
            ),
        },
        "description",
        "check_name",
        "fingerprint",
        "severity",
        "location",
    ),
}
# junit-10.xsd: element -> (required attributes, optional ones, children)
JUNIT: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": ({"name"}, {"time", "classname", "group"}, {"skipped", "error", "failure", "system-out", "system-err"}),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}


def valid_sarif(text: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text)
    jsonschema.validate(content, SARIF, jsonschema.Draft202012Validator)
    (run,) = content["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    return run  # type: ignore[no-any-return]


def valid_junit(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    for element in root.iter():
        required, optional, children = JUNIT[element.tag]
        assert required <= set(element.attrib) <= required | optional
        assert {child.tag for child in element} <= children
    for suite in root.iter("testsuite"):
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
        assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
    return root


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    """As GitHub's runner reads a line (actions/runner, ActionCommand.TryParseV2)."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
        assert match is not None, line
        pairs = dict(each.split("=", 1) for each in match[2].split(","))
        for escape, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            pairs = {key: value.replace(escape, sign) for key, value in pairs.items()}
        found.append((match[1], pairs, match[3].replace("%25", "%")))
    return found


@pytest.fixture
def here(script: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the script, as the root of a repository."""
    monkeypatch.chdir(script.parent)
    (script.parent / ".git").mkdir()
    return script.parent


def test_findings_are_at_their_lines(report: Report, here: Path) -> None:
    """In every format the same file, line and words."""
    finding = report.diagnosis.findings[0]
    where = finding.locations[0]
    name = Path(where.file).relative_to(here).as_posix()
    (result, *_) = valid_sarif(sarif.render(report))["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (name, where.line)
    assert result["message"]["text"].startswith(finding.title)
    (kind, pairs, message), *_ = commands(github.render(report))
    assert (kind, pairs["file"], pairs["line"]) == (finding.severity.value, name, str(where.line))
    assert message.startswith(finding.title)
    issues = json.loads(gitlab.render(report))
    jsonschema.validate(issues, GITLAB, jsonschema.Draft202012Validator)
    assert issues[0]["location"] == {"path": name, "lines": {"begin": where.line}}
    failures = valid_junit(junit.render(report)).findall("testsuite/testcase/failure")
    assert failures[0].get("message") == report.verdict.summary


def test_an_exceeded_gate_comes_first(make_report: Callable[..., Report], gate: Gate, here: Path) -> None:
    """With the line that grew; a gate that is passed has no findings, as there is nothing to do."""
    exceeded = make_report(gate=gate)
    (kind, pairs, message), *_ = commands(github.render(exceeded))
    assert (kind, pairs["file"], pairs["line"]) == ("error", "train.py", "6")
    assert message.startswith("train: +10.00 GiB of activations here, now 20.00 GiB. budget: peak 37.00 GiB")
    (case,) = valid_junit(junit.render(exceeded)).findall("testsuite/testcase")
    assert (case.get("name"), case.find("failure") is not None) == ("budget", True)
    passed = make_report(gate=replace(gate, passed=True, checks=()))
    assert commands(github.render(passed))[0][0] == "notice"
    assert json.loads(gitlab.render(passed)) == []
    assert valid_sarif(sarif.render(passed))["results"] == []


def test_a_job_that_could_not_be_judged(here: Path) -> None:
    """An error in every format, though there is no line to show it at."""
    run = GateRun(jobs=(Judged(name="train", failure="the script ended with status 7"),))
    assert commands(github.render_gate(run)) == [
        ("error", {"title": "oomdoc-not-judged could-not-judge"}, "train: the script ended with status 7")
    ]
    jsonschema.validate(json.loads(gitlab.render_gate(run)), GITLAB, jsonschema.Draft202012Validator)
    assert valid_sarif(sarif.render_gate(run))["results"][0]["locations"] == []
    assert valid_junit(junit.render_gate(run)).get("errors") == "1"


def test_hostile_names_are_inert(make_report: Callable[..., Report], gate: Gate, here: Path) -> None:
    """A name of a snapshot starts no command of GitHub's runner and breaks no XML."""
    line = replace(gate.held[0], file=HOSTILE, function=HOSTILE, code=HOSTILE, module=HOSTILE)
    report = make_report(gate=replace(gate, job=HOSTILE, moved=(), held=(line,)))
    finding = replace(report.diagnosis.findings[0], title=HOSTILE, locations=(Location(HOSTILE, 3, HOSTILE),))
    report = replace(report, diagnosis=replace(report.diagnosis, findings=(finding,)))
    for kind, pairs, _ in commands(github.render(report)):
        assert kind in ("error", "warning", "notice")
        assert set(pairs) <= {"file", "line", "title"}
    valid_junit(junit.render(report))
    valid_sarif(sarif.render(report))
    jsonschema.validate(json.loads(gitlab.render(report)), GITLAB, jsonschema.Draft202012Validator)


def test_places_are_those_of_the_repository(here: Path) -> None:
    """From its root, wherever the command runs; a package's file, or one outside, has none."""
    assert repository_place("train.py", 3) == ("train.py", 3)
    assert repository_place(str(here / "a" / "b.py"), None) == ("a/b.py", 1)
    assert repository_place("/elsewhere/b.py", 3) == (None, None)
    assert repository_place("../b.py", 3) == (None, None)
    assert repository_place("site-packages/torch/nn.py", 3) == (None, None)
    assert repository_place(str(here / "venv" / "site-packages" / "x.py"), 3) == (None, None)


def test_an_issue_keeps_its_fingerprint_where_its_line_moves(
    make_report: Callable[..., Report], gate: Gate, here: Path
) -> None:
    """Code scanning then knows it again; two issues of one line stay two."""

    def fingerprints(*held: Line) -> list[str]:
        report = make_report(gate=replace(gate, moved=(), held=held))
        return [each["fingerprint"] for each in json.loads(gitlab.render(report))]

    line = gate.held[0]
    assert fingerprints(line) == fingerprints(replace(line, line=99))
    assert len(set(fingerprints(line, line))) == len(fingerprints(line, line))
