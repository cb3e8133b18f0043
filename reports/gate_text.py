"""What the renderers of a gate share: its rows and sentences."""

from ..diagnosers.call_sites import module_label
from ..gates.interface import Check, Gate, Line, LineMoved
from .diff_text import ratio, signed
from .model import GateRun, Judged
from .text import band, change, factor, maybe_size, size

MOST_LINES = 10


def headline(run: GateRun) -> str:
    """`Gate passed`, `Gate exceeded: 1 of 3 jobs`."""
    failed = [job for job in run.jobs if job.gate is None or not job.gate.passed]
    if not failed:
        return "Gate passed"
    if len(run.jobs) > 1:
        return f"Gate exceeded: {len(failed)} of {len(run.jobs)} jobs"
    return "Gate exceeded" if failed[0].gate else "The gate could not judge"


def lines(run: GateRun) -> tuple[str, ...]:
    """The verdict in a few plain lines: the headline, and each limit that does not hold."""
    told = [headline(run)]
    for job in run.jobs:
        if job.gate is None:
            told.append(f"{job.name}: {job.failure}")
        else:
            told += [f"{job.name}: {sentence(check, job.gate)}" for check in failed_checks(job.gate)]
    return tuple(told)


def job_row(job: Judged) -> tuple[str, ...]:
    """Job, GPU, peak, limit, change against the baseline."""
    if job.report is None or job.gate is None:
        return (job.name, "", "not judged", "", "")
    gate = job.gate
    source = job.report.source
    card = f"{source.gpu or '?'} x{source.world_size}" if source.world_size > 1 else source.gpu or "?"
    moved = "" if gate.baseline_bytes is None else change_against(gate.baseline_bytes, gate.peak_bytes)
    return (job.name, card, size(gate.peak_bytes), maybe_size(gate.limit_bytes, "the card"), moved)


def change_against(before: int, now: int) -> str:
    """`+1.00 GiB x1.08`; `same`."""
    return f"{signed(now - before)} {ratio(before, now)}".strip() if now != before else "same"


def failed_checks(gate: Gate) -> tuple[Check, ...]:
    return tuple(check for check in gate.checks if not check.passed)


def sentence(check: Check, gate: Gate) -> str:
    """One limit that does not hold, in numbers."""
    if check.limit_bytes is None:
        return f"{check.name}: {check.text}"
    over = gate.peak_bytes - check.limit_bytes
    peak = f"peak {size(gate.peak_bytes)} {gate.metric.value}"
    return f"{check.name}: {peak} against {check.text}; {size(over)} too much"


def place(line: Line) -> str:
    """`train.py:12 in forward · blocks.*.mlp`."""
    if line.file is None:
        where = "smaller lines" if not line.blocks else "no Python frame"
    else:
        where = f"{line.file}:{line.line}" if line.line else line.file
        where += f" in {line.function}" if line.function else ""
    return f"{where} · {module_label(line.module)}" if line.module else where


def line_row(row: LineMoved) -> tuple[str, str, str, str, str]:
    """Change, factor, category, place, code."""
    before = row.before.bytes if row.before else 0
    after = row.after.bytes if row.after else 0
    return signed(row.bytes), ratio(before, after), row.now.category.value, place(row.now), row.now.code or ""


def held_row(line: Line) -> tuple[str, str, str, str]:
    """Bytes, category, place, code."""
    return size(line.bytes), line.category.value, place(line), line.code or ""


def changed(gate: Gate) -> tuple[str, ...]:
    """`train.py:4: hidden = 2048`, for each line changed since the baseline."""
    return tuple(f"{each.file}:{each.line}: {each.code}" for each in gate.changes)


def only_baseline(gate: Gate) -> bool:
    """Nothing is exceeded; there is only nothing to compare with."""
    return all(check.name == "baseline" for check in failed_checks(gate))


def short_remedy(gate: Gate) -> str | None:
    if gate.remedy is None:
        return None
    return f"{change(gate.remedy)} is predicted to need {size(gate.remedy.estimate.predicted_peak_bytes.expected)}"


def remedy_sentence(gate: Gate) -> str:
    """The first change that brings the peak below the limits."""
    if gate.remedy is None:
        if any(check.name == "fits" and not check.passed for check in gate.checks):
            return "the recording ends at the failure; oomdoc plan tries each change by a run of its own"
        return "no change that is known brings it below the limit: see what holds it"
    estimate = gate.remedy.estimate
    peak, time = band(estimate.predicted_peak_bytes), factor(estimate.step_time_factor)
    return f"{change(gate.remedy)}: predicted peak {peak}, step time {time}. {estimate.why}"
