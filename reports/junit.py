"""JUnit XML, as CI systems read it: a suite per job, a case per limit or device.

The elements and attributes are those of Jenkins' junit-10.xsd. No times: two runs of one commit give the same bytes.
"""

from collections.abc import Sequence
from xml.etree import ElementTree

from ..gates.interface import Check, Gate
from .gate_text import sentence
from .issues import Issue, of_report
from .model import GateRun, Judged, Report
from .text import CONTROLS


def render(report: Report) -> str:
    name = report.gate.job if report.gate else report.source.path
    return _document([_suite(Judged(name=name, report=report))])


def render_gate(run: GateRun) -> str:
    return _document([_suite(job) for job in run.jobs])


def _document(suites: Sequence[ElementTree.Element]) -> str:
    root = ElementTree.Element("testsuites", {"name": "oomdoc", **_sums(suites)})
    root.extend(suites)
    ElementTree.indent(root, " ")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _sums(suites: Sequence[ElementTree.Element]) -> dict[str, str]:
    return {key: str(sum(int(suite.get(key, 0)) for suite in suites)) for key in ("tests", "failures", "errors")}


def _suite(job: Judged) -> ElementTree.Element:
    name = _clean(job.name)
    if job.report is None:
        cases = [_case(name, "recorded", ("error", "could not be judged", job.failure or ""))]
    elif job.report.gate is not None:
        cases = [_of_check(name, check, job.report.gate) for check in job.report.gate.checks]
    else:
        cases = [*_of_devices(name, job.report)]
    told = "\n".join(_told(issue) for issue in of_report(job.report)) if job.report else ""
    counts = {kind: sum(case.find(tag) is not None for case in cases) for kind, tag in _KINDS.items()}
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(cases)),
                                failures=str(counts["failures"]), errors=str(counts["errors"]))  # fmt: skip
    suite.extend(cases)
    if told:
        ElementTree.SubElement(suite, "system-out").text = _clean(told)
    return suite


_KINDS = {"failures": "failure", "errors": "error"}


def _of_check(job: str, check: Check, gate: Gate) -> ElementTree.Element:
    if check.passed:
        return _case(job, check.name)
    return _case(job, check.name, ("failure", sentence(check, gate), sentence(check, gate)))


def _of_devices(job: str, report: Report) -> list[ElementTree.Element]:
    devices = report.diagnosis.profile.devices
    summary = report.verdict.summary
    if not devices:
        return [_case(job, "fits", ("failure", summary, summary) if report.verdict.out_of_memory else None)]
    return [
        _case(job, f"rank {each.rank}, device {each.device} fits", ("failure", summary, summary) if each.oom else None)
        for each in devices
    ]


def _case(job: str, name: str, wrong: tuple[str, str, str] | None = None) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=f"oomdoc.{job}", name=name)
    if wrong is not None:
        tag, message, text = wrong
        ElementTree.SubElement(case, tag, message=_clean(message), type=tag).text = _clean(text)
    return case


def _told(issue: Issue) -> str:
    where = f"{issue.file}:{issue.line}: " if issue.file else ""
    return f"{where}{issue.level}: {issue.rule} {issue.name}: {issue.message}"


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return "".join(sign for sign in text.translate(CONTROLS) if sign not in "\ufffe\uffff" and not _surrogate(sign))


def _surrogate(sign: str) -> bool:
    return "\ud800" <= sign <= "\udfff"
