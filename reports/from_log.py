"""The report of a log, and its numbers in words."""

from ..diagnosers.from_log import Log, Logged, cached, derive
from ..diagnosers.interface import Diagnosis
from ..diagnosers.oom_forms import Kind
from .model import Report, Source, Verdict
from .text import size

_ROWS = 12
_WHAT = {
    Kind.DEVICE: "the GPU's memory ran out",
    Kind.LIBRARY: "a library could not allocate on the GPU, outside PyTorch's allocator",
    Kind.SERVER: "the inference server finds no room on the GPU by its own arithmetic",
    Kind.HOST: "the memory of the machine (not of the GPU) ran out",
    Kind.SHARED: "shared memory (/dev/shm) ran out or a process got SIGBUS: neither GPU nor allocator",
    Kind.WORKER: "a DataLoader worker died; the log does not say of what",
    Kind.KILLED: "a process was killed from outside: the machine's memory or the scheduler, not the GPU",
    Kind.SUSPECT: "an error that a full GPU often causes, and other faults too",
    Kind.WARNING: "an allocation failed and the program went on",
    Kind.SUMMARY: "torch.cuda.memory_summary()",
}
_GRAVEST = tuple(_WHAT)


def build(log: Log, diagnosis: Diagnosis, *, path: str, next_commands: tuple[str, ...]) -> Report:
    ranks = {each.message.rank for each in log.logged if each.message.rank is not None}
    return Report(
        source=Source(
            path=path,
            kind="log",
            torch=None,
            gpu=None,
            world_size=max(ranks, default=0) + 1,
            ranks=tuple(sorted(ranks)),
        ),
        verdict=_verdict(log),
        diagnosis=diagnosis,
        next_commands=next_commands,
        log=log,
    )


def _verdict(log: Log) -> Verdict:
    failures = log.failures
    if failures:
        first = failures[0]
        return Verdict(
            out_of_memory=True,
            rank=first.message.rank,
            device=first.message.device,
            summary=" ".join(part for part in (_failure(first), _more(log)) if part),
        )
    heard = [each for each in log.logged if each.message.kind is not Kind.SUMMARY]
    if not heard:
        summary = f"No line of {log.lines:,} speaks of memory that ran out."
    else:
        worst = min(heard, key=lambda each: _GRAVEST.index(each.message.kind))
        summary = f"No out of memory is named, but {_WHAT[worst.message.kind]}: {worst.message.text[:160]}"
    return Verdict(out_of_memory=False, rank=None, device=None, summary=summary)


def _failure(logged: Logged) -> str:
    message = logged.message
    whole = f" of {size(message.total_bytes)}" if message.total_bytes else ""
    at = f"{_who(logged)}: " if _who(logged) else ""
    if message.kind is not Kind.DEVICE or message.tried_bytes is None:
        tried = f" ({size(message.tried_bytes)} was asked for)" if message.tried_bytes is not None else ""
        return f"Out of memory: {at}{_WHAT[message.kind]}{tried}."
    free = "" if message.free_bytes is None else f" with {size(message.free_bytes)} free on the device"
    held = "" if message.allocated_bytes is None else f"; {size(message.allocated_bytes)}{whole} was allocated"
    spare = cached(message)
    kept = f" and {size(spare)} cached" if held and spare is not None else ""
    return f"Out of memory: {at}{size(message.tried_bytes)} was asked of the driver{free}{held}{kept}."


def _who(logged: Logged) -> str:
    message = logged.message
    rank = f"rank {message.rank}" if message.rank is not None else ""
    device = f"device {message.device}" if message.device is not None else ""
    return ", ".join(part for part in (rank, device) if part)


def _more(log: Log) -> str:
    places = {(each.message.rank, each.message.device) for each in log.failures}
    told = sum(each.times for each in log.failures)
    more = f"It is said {told} times, by {len(places)} ranks or devices." if len(places) > 1 else ""
    kinds = {each.message.kind for each in log.logged} - {log.failures[0].message.kind, Kind.SUMMARY, Kind.WARNING}
    also = "; ".join(_WHAT[kind] for kind in _GRAVEST if kind in kinds)
    return " ".join(part for part in (more, f"Also in the log: {also}." if also else "") if part)


def rows(log: Log) -> tuple[tuple[str, str], ...]:
    """(where, what) of each different message, for a table; the rest as a count."""
    found = [
        (f"line {each.line}" if each.times == 1 else f"line {each.line} (x{each.times})", _row(each))
        for each in log.logged
    ]
    rest = len(found) - _ROWS + log.left_out
    return (*found[:_ROWS], *([("", f"{rest:,} more in --format json")] if rest > 0 else []))


def _row(logged: Logged) -> str:
    message, derived = logged.message, derive(logged.message)
    numbers = (
        ("asked", message.tried_bytes),
        ("free", message.free_bytes),
        ("allocated", message.allocated_bytes),
        ("in private pools", message.private_pool_bytes),
        ("cached", cached(message)),
        ("card", message.total_bytes),
        ("allowed", message.allowed_bytes),
        ("outside this allocator", derived.outside_bytes),
        ("of that in this process", derived.own_outside_bytes),
        ("of that of others", derived.others_bytes),
    )
    parts = [_who(logged), message.backend, _WHAT[message.kind] if message.tried_bytes is None else ""]
    parts += [f"{name} {size(count)}" for name, count in numbers if count is not None]
    parts.append({True: "fragmentation possible", False: "not fragmentation", None: ""}[derived.fragmentation_possible])
    if derived.setting_can_help is False:
        parts.append("no allocator setting helps: free and cached together are smaller than the request")
    return " · ".join(part for part in parts if part)
