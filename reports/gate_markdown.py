"""The gate as GitHub-flavoured Markdown: for a step summary, or a comment on a pull request."""

from ..gates.interface import Gate
from .diff_text import ratio, signed
from .gate_text import (
    MOST_LINES,
    changed,
    failed_checks,
    headline,
    held_row,
    job_row,
    line_row,
    only_baseline,
    remedy_sentence,
    sentence,
)
from .markdown import inert, inline_code, table
from .model import GateRun, Judged
from .text import category_title, size


def render(run: GateRun) -> str:
    """The whole verdict; every string of a recording is escaped."""
    blocks = [f"## {inert(headline(run))}"]
    rows = [(_mark(job), *map(inert, job_row(job))) for job in run.jobs]
    blocks.append(table(("", "job", "GPU", "peak", "limit", "against baseline"), rows, right=(3, 4, 5)))
    for job in run.jobs:
        if job.gate is None:
            blocks.append(f"### {inert(job.name)}\n\n{inert(job.failure or '')}")
        elif not job.gate.passed:
            blocks += failed(job.gate, job)
        elif job.gate.notes:
            blocks.append(f"{inert(job.name)}: {inert('; '.join(job.gate.notes))}")
    if run.next_commands:
        blocks.append("\n".join(["```sh", *run.next_commands, "```"]))
    return "\n\n".join(blocks) + "\n"


def _mark(job: Judged) -> str:
    return "✓" if job.gate is not None and job.gate.passed else "✗"


def failed(gate: Gate, job: Judged) -> list[str]:
    """What is wrong with one job."""
    blocks = [f"### {inert(gate.job)}"]
    blocks.append("\n".join(f"- **{inert(sentence(check, gate))}**" for check in failed_checks(gate)))
    if gate.notes:
        blocks.append("\n".join(f"- note: {inert(note)}" for note in gate.notes))
    if only_baseline(gate):
        return blocks
    if gate.changes:
        blocks.append("Changed since the baseline was committed:")
        blocks.append("\n".join(f"- `{inline_code(each)}`" for each in changed(gate)))
    if gate.moved:
        rows = [
            (signed(row.bytes), ratio(row.before_bytes, row.after_bytes), size(row.before_bytes),
             size(row.after_bytes), category_title(row.category))
            for row in gate.categories
        ]  # fmt: skip
        blocks.append(table(("change", "", "before", "after", "for"), rows, right=(0, 1, 2, 3)))
        lines = [
            (*row[:3], f"`{inline_code(row[3])}`", _code(row[4])) for row in map(line_row, gate.moved[:MOST_LINES])
        ]
        blocks.append(table(("change", "", "for", "line", "code"), lines, right=(0, 1)))
    else:
        held = [(*row[:2], f"`{inline_code(row[2])}`", _code(row[3])) for row in map(held_row, gate.held[:MOST_LINES])]
        blocks.append(table(("bytes", "for", "line", "code"), held, right=(0,)))
    findings = job.report.diagnosis.findings if job.report else ()
    if findings:
        blocks.append(f"Cause: **{findings[0].code} {inert(findings[0].name)}**: {inert(findings[0].title)}")
    blocks.append(f"First remedy: {inert(remedy_sentence(gate))}")
    return blocks


def _code(code: str) -> str:
    return f"`{inline_code(code)}`" if code else ""
