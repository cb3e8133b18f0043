"""`oomdoc.gate/1`: the stable JSON contract of the gate, described by configs/gate.schema.json."""

import json
from typing import Any

from ..gates.interface import Check, Gate, Line, LineMoved
from .model import GateRun

SCHEMA = "oomdoc.gate/1"


def render(run: GateRun) -> str:
    """The verdict as indented JSON, with a newline at its end."""
    return json.dumps(to_dict(run), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_dict(run: GateRun) -> dict[str, Any]:
    from .json import to_dict as report

    return {
        "schema": SCHEMA,
        "passed": run.passed,
        "jobs": [
            {"name": job.name, "failure": job.failure, "report": report(job.report) if job.report else None}
            for job in run.jobs
        ],
    }


def gate(judged: Gate) -> dict[str, Any]:
    """The section `gate` of a report."""
    from .json import candidate

    return {
        "job": judged.job,
        "passed": judged.passed,
        "metric": judged.metric.value,
        "peak_bytes": judged.peak_bytes,
        "budget_bytes": judged.budget_bytes,
        "baseline_bytes": judged.baseline_bytes,
        "checks": [_check(check) for check in judged.checks],
        "categories": [
            {"category": row.category.value, "bytes": row.bytes, "before_bytes": row.before_bytes,
             "after_bytes": row.after_bytes}
            for row in judged.categories
        ],
        "moved": [_moved(row) for row in judged.moved],
        "changes": [{"file": each.file, "line": each.line, "code": each.code} for each in judged.changes],
        "notes": list(judged.notes),
        "remedy": candidate(judged.remedy) if judged.remedy else None,
    }  # fmt: skip


def _check(check: Check) -> dict[str, Any]:
    return {"name": check.name, "passed": check.passed, "limit_bytes": check.limit_bytes, "text": check.text}


def _moved(row: LineMoved) -> dict[str, Any]:
    return {
        "bytes": row.bytes,
        "before_bytes": row.before.bytes if row.before else 0,
        "after_bytes": row.after.bytes if row.after else 0,
        "before_count": _blocks(row.before),
        "after_count": _blocks(row.after),
        "category": row.now.category.value,
        "file": row.now.file,
        "line": row.now.line,
        "function": row.now.function,
        "module": row.now.module,
        "code": row.now.code,
    }


def _blocks(line: Line | None) -> int:
    return line.blocks if line else 0
