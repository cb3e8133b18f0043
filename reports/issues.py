"""Findings and exceeded limits as flat records, which the formats for machines share: one place, one message each."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..diagnosers.interface import Finding
from ..diagnosers.source import code_at
from ..gates.interface import Gate, Line
from .diff_text import signed
from .gate_text import changed, failed_checks, only_baseline, place, sentence, short_remedy
from .model import GateRun, Judged, Report
from .text import category_title, size
from .text import place as code_place

GATE, FAILED = "oomdoc-gate", "oomdoc-not-judged"
MOST_LINES = 5  # of an exceeded gate that are told each by itself
_GREW_SHARE = 0.05  # of all that grew: smaller lines are no cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """`file` is relative to the repository's root; None where no line of it is to be pointed at."""

    rule: str
    name: str
    level: str  # error | warning | note
    message: str
    file: str | None
    line: int | None
    function: str | None
    fingerprint: str  # the same while the code of the line is, wherever it moves


def of_report(report: Report) -> tuple[Issue, ...]:
    """The findings of a report; with a gate, first the limits that do not hold, and nothing when all do."""
    found = [*_of_gate(report.gate, report)] if report.gate is not None else []
    if report.gate is None or found:
        found += [_of_finding(finding, report) for finding in report.diagnosis.findings]
    return _unique(found)


def of_run(run: GateRun) -> tuple[Issue, ...]:
    """Those of every job."""
    return _unique([issue for job in run.jobs for issue in _of_job(job)])


def _of_job(job: Judged) -> Sequence[Issue]:
    if job.report is not None:
        return of_report(job.report)
    message = f"{job.name}: {job.failure}"
    return [_issue(FAILED, "could-not-judge", "error", message, None, None, None, job.name)]


def _of_gate(gate: Gate, report: Report) -> Iterator[Issue]:
    failed = failed_checks(gate)
    if not failed:
        return
    whole = ". ".join([*(sentence(check, gate) for check in failed), *_hints(gate)])
    telling = [] if only_baseline(gate) else _telling(gate)
    for number, (text, line) in enumerate(telling):
        file, at = repository_place(line.file, line.line)
        message = f"{gate.job}: {text}. {whole}" if number == 0 else f"{gate.job}: {text}"
        what = f"{gate.job} {line.category.value} {line.code or place(line)}"
        yield _issue(GATE, "memory-limit-exceeded", "error", message, file, at, line.function, what)
    if not telling:
        file, at = _script(report)
        yield _issue(GATE, "memory-limit-exceeded", "error", f"{gate.job}: {whole}", file, at, None, gate.job)


def _hints(gate: Gate) -> Iterator[str]:
    if gate.changes:
        yield f"Changed since the baseline: {'; '.join(changed(gate))}"
    remedy = short_remedy(gate)
    if remedy:
        yield f"Remedy: {remedy}"


def _telling(gate: Gate) -> list[tuple[str, Line]]:
    """The lines that grew most; without a baseline those that hold most."""
    grown = [row for row in gate.moved if row.bytes > 0 and row.now.file is not None]
    if grown:
        whole = sum(row.bytes for row in grown)
        rows = [row for row in grown if row.bytes >= _GREW_SHARE * whole][:MOST_LINES]
        return [
            (f"{signed(row.bytes)} of {category_title(row.now.category)} here, now {size(row.now.bytes)}", row.now)
            for row in rows
        ]
    held = [line for line in gate.held if line.file is not None][:MOST_LINES]
    return [(f"{size(line.bytes)} of {category_title(line.category)} here", line) for line in held]


def _of_finding(finding: Finding, report: Report) -> Issue:
    places = [(repository_place(each.file, each.line), each) for each in finding.locations]
    (file, number), where = next(((spot, each) for spot, each in places if spot[0]), (_script(report), None))
    told = [finding.title, *finding.evidence]
    if where is None and finding.locations:
        told.append(f"at {code_place(finding.locations[0])}")
    if finding.remedies:
        told.append(f"try: {', '.join(finding.remedies)}")
    code = code_at(where.file, where.line) if where else None
    return _issue(finding.code, finding.name, finding.severity.value, ". ".join(told), file, number,
                  where.function if where else None, code or "")  # fmt: skip


def _issue(
    rule: str, name: str, level: str, message: str, file: str | None, line: int | None, function: str | None, what: str
) -> Issue:
    identity = "\0".join((rule, file or "", function or "", what))
    return Issue(
        rule=rule, name=name, level=level, message=" ".join(message.split()), file=file, line=line, function=function,
        fingerprint=hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:32],
    )  # fmt: skip


def _unique(issues: Sequence[Issue]) -> tuple[Issue, ...]:
    """Two issues of one line keep apart by their number."""
    seen: dict[str, int] = {}
    found = []
    for issue in issues:
        number = seen[issue.fingerprint] = seen.get(issue.fingerprint, 0) + 1
        numbered = hashlib.sha256(f"{issue.fingerprint} {number}".encode()).hexdigest()[:32]
        found.append(issue if number == 1 else replace(issue, fingerprint=numbered))
    return tuple(found)


def _script(report: Report) -> tuple[str | None, int | None]:
    """The first line of the script that was run: where an issue without a line of its own is shown."""
    recording = report.diagnosis.profile.recording
    script = recording.argv[0] if recording and recording.argv else ""
    if not script.endswith(".py"):
        return None, None
    file, _ = repository_place(script, 1)
    return file, 1 if file else None


def repository_place(file: str | None, line: int | None) -> tuple[str | None, int | None]:
    """A path from the root of the repository that the current folder is in; (None, None) for files outside it."""
    if not file or file.startswith(("site-packages/", "dist-packages/", "<")):
        return None, None
    root, path = _root(), Path(file)
    try:
        inside = (path if path.is_absolute() else Path.cwd() / path).relative_to(root)
    except ValueError:
        return None, None
    if ".." in inside.parts or "site-packages" in inside.parts:
        return None, None
    return inside.as_posix(), max(1, line or 1)


def _root() -> Path:
    here = Path.cwd()
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), here)
