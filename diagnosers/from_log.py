"""The diagnosis of what messages in a log can tell, and what they cannot.

Derived figures, all from printed numbers: outside this allocator = total - free - reserved; outside PyTorch in this
process = in use by it - reserved; others = total - free - in use by it; the most that this process could have had =
free + reserved.
The hint at the end of PyTorch's message is printed whatever the cause, and is not repeated here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO

from . import outside_allocator, request_exceeds_card
from .interface import Confidence, Diagnosis, Finding, Inconclusive, MemoryProfile, Severity
from .log_lines import Scan
from .oom_forms import Kind
from .oom_messages import OUT_OF_MEMORY, Message, parse, rounding
from .text import percent, size

FRAGMENTATION = "OOM005"  # its module needs the allocator, whose import takes a tenth of the time of a small log
MOST_KEPT = 10_000  # different messages; further ones are counted, not kept


@dataclass(frozen=True, slots=True)
class Logged:
    """A message where it stands first, and how often the same numbers of the same rank were logged."""

    file: str
    line: int
    times: int
    message: Message


@dataclass(frozen=True, slots=True)
class Log:
    """All that one or several files say about memory, in the order in which it was first said."""

    lines: int
    bytes: int
    logged: tuple[Logged, ...]
    left_out: int = 0

    @property
    def failures(self) -> tuple[Logged, ...]:
        """Those that say that memory ran out."""
        return tuple(each for each in self.logged if each.message.kind in OUT_OF_MEMORY)

    @property
    def devices(self) -> tuple[Logged, ...]:
        """The first failure with numbers of each rank and device: later ones are often its consequence."""
        first: dict[tuple[int | None, int | None], Logged] = {}
        for each in self.logged:
            message = each.message
            if message.kind is Kind.DEVICE and message.tried_bytes is not None:
                first.setdefault((message.rank, message.device), each)
        return tuple(first.values())


def read(streams: Iterable[tuple[str, IO[bytes]]]) -> Log:
    """Reads named streams to their ends, a piece at a time."""
    found: dict[tuple[str, Message], Logged] = {}
    lines = count = left_out = 0
    for name, stream in streams:
        scan = Scan(stream)
        for candidate in scan:
            for message in parse(candidate.line, candidate.after):
                known = found.get((name, message))
                if known is not None:
                    found[name, message] = Logged(name, known.line, known.times + 1, message)
                elif len(found) < MOST_KEPT:
                    found[name, message] = Logged(name, candidate.number, 1, message)
                else:
                    left_out += 1
        lines += scan.lines
        count += scan.bytes
    return Log(lines, count, tuple(found.values()), left_out)


def reserved(message: Message) -> int | None:
    """All that the allocator holds, whichever two of the three numbers a version prints."""
    if message.reserved_bytes is not None:
        return message.reserved_bytes
    if message.allocated_bytes is None or message.cached_bytes is None:
        return None
    return message.allocated_bytes + message.cached_bytes


def cached(message: Message) -> int | None:
    """Held by the allocator and not allocated."""
    if message.cached_bytes is not None:
        return message.cached_bytes
    if message.reserved_bytes is None or message.allocated_bytes is None:
        return None
    return max(0, message.reserved_bytes - message.allocated_bytes)


def outside(message: Message) -> int | None:
    """In use on the card and not held by this allocator: context, NCCL, other processes. None where it is not said, or
    where the numbers contradict each other (Windows counts memory of the host as allocated)."""
    held = reserved(message)
    if message.total_bytes is None or message.free_bytes is None or held is None:
        return None
    rest = message.total_bytes - message.free_bytes - held
    return max(0, rest) if rest >= -_slack(message) else None


def _slack(message: Message) -> int:
    """How far a sum of the printed numbers can be off."""
    numbers = (
        message.tried_bytes, message.total_bytes, message.free_bytes, message.allocated_bytes, message.cached_bytes,
        message.reserved_bytes,
    )  # fmt: skip
    return sum(map(rounding, numbers))


def contradicts(message: Message) -> bool:
    """More is held than the card has: the driver moved memory to the host."""
    held = reserved(message) or message.allocated_bytes
    return bool(held and message.total_bytes and held > message.total_bytes + _slack(message))


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows from the numbers of one message; None where one of them is missing or they contradict each other."""

    outside_bytes: int | None  # not this allocator's: own_outside + others
    own_outside_bytes: int | None  # context, NCCL and libraries of this process
    others_bytes: int | None
    fragmentation_possible: bool | None  # at least as much was cached as was asked for
    setting_can_help: bool | None  # free and cached together reach the request: else no allocator setting helps


def derive(message: Message) -> Derived:
    held, spare, tried = reserved(message), cached(message), message.tried_bytes
    own = others = fragmented = helps = None
    odd = contradicts(message)
    if message.process_bytes is not None and held is not None:
        own = max(0, message.process_bytes - held)
        if message.total_bytes is not None and message.free_bytes is not None:
            others = max(0, message.total_bytes - message.free_bytes - message.process_bytes)
    if message.other_bytes is not None:
        others = message.other_bytes
    if spare is not None and tried is not None and not odd:
        fragmented = spare + _slack(message) >= tried
        if message.free_bytes is not None:
            helps = spare + message.free_bytes + _slack(message) >= tried
    return Derived(None if odd else outside(message), own, others, fragmented, helps)


def diagnose(log: Log, thresholds: Mapping[str, Mapping[str, float]]) -> Diagnosis:
    """Findings of each device that failed, and the reasons for what no message can tell."""
    findings: list[Finding] = []
    reasons: dict[Inconclusive, None] = {}
    for each in log.devices:
        judged = (_too_large(each), _outside(each, thresholds[outside_allocator.CODE]))
        findings += [finding for finding in judged if finding is not None]
        for reason in _open(each):
            reasons[reason] = None
    for reason in _whole(log):
        reasons[reason] = None
    findings.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    return Diagnosis(profile=MemoryProfile(devices=()), findings=tuple(findings), inconclusive=tuple(reasons))


def _too_large(logged: Logged) -> Finding | None:
    message = logged.message
    held, tried = reserved(message), message.tried_bytes
    if tried is None or held is None or contradicts(message):
        return None
    if message.allowed_bytes is not None:
        most, what = message.allowed_bytes, "this process is allowed"
    elif message.free_bytes is not None:
        most, what = message.free_bytes + held, "this process could have had: free plus all that it holds"
    else:
        return None
    if tried <= most + _slack(message):
        return None
    return _finding(
        logged,
        request_exceeds_card,
        severity=Severity.ERROR,
        title=f"One request of {size(tried)} is larger than the {size(most)} that {what}",
        count=tried,
        share=tried / most if most else 1.0,
        evidence=(f"even with every tensor of this process freed, {size(most)} were there to take",),
    )


def _outside(logged: Logged, limits: Mapping[str, float]) -> Finding | None:
    message, rest = logged.message, outside(logged.message)
    if rest is None or not message.total_bytes or contradicts(message):
        return None
    part, surplus = rest / message.total_bytes, rest - int(limits["expected_bytes"])
    if surplus <= 0 or part < limits["min_share"]:
        return None
    decisive = surplus + (message.free_bytes or 0) >= (message.tried_bytes or 0)
    return _finding(
        logged,
        outside_allocator,
        severity=Severity.ERROR if decisive else Severity.WARNING,
        title=f"{size(rest)} of the card, {percent(part)}, is used outside this process's PyTorch allocator",
        count=rest,
        share=part,
        evidence=(
            f"card {size(message.total_bytes)}, free {size(message.free_bytes or 0)}, "
            f"reserved by PyTorch {size(reserved(message) or 0)}",
            *_owners(message),
        ),
    )


def _owners(message: Message) -> tuple[str, ...]:
    held = reserved(message) or 0
    told = []
    if message.process_bytes is not None and message.total_bytes is not None:
        own = max(0, message.process_bytes - held)
        others = max(0, message.total_bytes - (message.free_bytes or 0) - message.process_bytes)
        told.append(f"of that {size(own)} in this process (context, NCCL), {size(others)} in others or in the driver")
    if message.processes:
        named = ", ".join(f"{pid} {size(taken)}" for pid, taken in message.processes)
        told.append(f"processes on the card: {named}; in a container this process can be one of them")
    return tuple(told)


def _finding(
    logged: Logged,
    cause: object,
    *,
    severity: Severity,
    title: str,
    count: int,
    share: float,
    evidence: tuple[str, ...],
) -> Finding:
    message = logged.message
    return Finding(
        code=getattr(cause, "CODE"),  # noqa: B009 - a module of all_causes
        name=getattr(cause, "NAME"),  # noqa: B009
        severity=severity,
        title=title,
        rank=message.rank,
        device=message.device,
        bytes=count,
        share_of_peak=share,
        confidence=Confidence.INFERRED,
        evidence=(f"{logged.file}:{logged.line}", *evidence),
        locations=(),
        remedies=getattr(cause, "REMEDIES"),  # noqa: B009
    )


def _open(logged: Logged) -> list[Inconclusive]:
    """What the message of one device leaves open."""
    message, where = logged.message, f"{logged.file}:{logged.line}: "
    spare, tried = cached(message), message.tried_bytes
    found = []
    if contradicts(message):
        reason = "more is held than the card has: the driver moved memory to the host, and its numbers do not add up"
        return [Inconclusive(code="log", reason=where + reason)]
    if spare is None or tried is None:
        reason = "the message does not say what was cached: whether fragmentation took part cannot be told"
        found.append(Inconclusive(code=FRAGMENTATION, reason=where + reason))
    elif spare + _slack(message) >= tried:
        reason = (
            f"possible: {size(spare)} was reserved and not allocated, {size(tried)} was asked for; whether a piece of "
            "that size was among it only a snapshot shows"
        )
        found.append(Inconclusive(code=FRAGMENTATION, reason=where + reason))
    if outside(message) is None:
        reason = "total, free and reserved bytes are not all in the message: what others hold cannot be told"
        found.append(Inconclusive(code=outside_allocator.CODE, reason=where + reason))
    elif (message.free_bytes or 0) > (tried or 0) + _slack(message) and message.allowed_bytes is None:
        reason = f"{size(message.free_bytes or 0)} was free for {size(tried or 0)}: not the card's memory was short"
        reason += "; a limit of the process, its address space or another process in between"
        found.append(Inconclusive(code="log", reason=where + reason))
    return found


def _whole(log: Log) -> list[Inconclusive]:
    """What a log leaves open as a whole."""
    found = []
    failed = [each for each in log.failures if each.message.kind is not Kind.HOST]
    if failed:
        reason = "a message names the request that failed, not what filled the card: by cause and by line, only a"
        found.append(Inconclusive(code="log", reason=f"{reason} snapshot can tell"))
    if any(each.message.tried_bytes is not None for each in log.devices):
        reason = "sizes are printed with two decimals, and the size tried is the segment asked of the driver (2 MiB, 20"
        found.append(Inconclusive(code="log", reason=f"{reason} MiB, or a multiple of 2 MiB), not the tensor's"))
    if failed and all(each.message.rank is None for each in failed):
        found.append(Inconclusive(code="log", reason="no line of a failure names its rank"))
    if (
        any(each.message.kind is Kind.DEVICE and each.message.tried_bytes is None for each in log.logged)
        and not log.devices
    ):
        found.append(Inconclusive(code="log", reason="the driver's error carries no numbers"))
    if log.left_out:
        found.append(Inconclusive(code="log", reason=f"{log.left_out:,} further messages were not kept"))
    return found
