"""What most causes need: shares, severities, the lines that hold most, and a claim made of blocks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .call_sites import Lines, like_module, module_label
from .interface import Case, Category, Claim, Confidence, DeviceProfile, LiveBlock, Location, Severity
from .text import line, size

MAX_LINES = 3


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes held by blocks that one line made."""

    bytes: int
    count: int
    location: Location | None
    module: str | None
    library: Location | None = None  # where the model is a package's: its own line

    def __str__(self) -> str:
        where = line(self.location) if self.location else "no stack recorded"
        module = f", in {module_label(self.module)}" if self.module else ""
        if self.library:
            module += f", below {line(self.library)}"
        blocks = "1 block" if self.count == 1 else f"{self.count} blocks"
        return f"{size(self.bytes)} in {blocks} from {where}{module}"


def bytes_of(blocks: Iterable[LiveBlock]) -> int:
    return sum(block.requested_bytes for block in blocks)


def share(profile: DeviceProfile, count: int) -> float:
    """Of the live bytes at the moment looked at."""
    return count / profile.live_bytes if profile.live_bytes else 0.0


def held_by_line(profile: DeviceProfile, blocks: Iterable[LiveBlock]) -> list[Held]:
    """By user line and module (layers joined), largest first."""
    lines = Lines(profile.snapshot)
    sums: dict[tuple[Location | None, str | None, Location | None], list[int]] = {}
    for block in blocks:
        location, below = lines.of(block.stack), lines.below(block.stack)
        entry = sums.setdefault((location, like_module(block.module), below), [0, 0])
        entry[0] += block.requested_bytes
        entry[1] += 1
    rows = [Held(total, count, *key[:2], library=key[2]) for key, (total, count) in sums.items()]
    return sorted(rows, key=lambda row: -row.bytes)


def locations(held: Iterable[Held]) -> tuple[Location, ...]:
    """The lines that matter, each once: one that holds hardly anything would only lead the reader away."""
    return tuple(dict.fromkeys(row.location for row in telling(held) if row.location is not None))[:MAX_LINES]


def telling(held: Iterable[Held]) -> list[Held]:
    """The rows with a line that hold a hundredth of the largest row at least."""
    rows = [row for row in held if row.location is not None]
    least = 0.01 * max((row.bytes for row in rows), default=0)
    return [row for row in rows if row.bytes >= least]


def confidence_of(blocks: Iterable[LiveBlock]) -> Confidence:
    """Exact where the blocks were recorded, but for a thousandth of their bytes."""
    blocks = list(blocks)
    guessed = bytes_of(b for b in blocks if b.confidence is not Confidence.EXACT)
    return Confidence.EXACT if guessed <= 0.001 * bytes_of(blocks) else Confidence.INFERRED


def severity(profile: DeviceProfile, part: float, limits: Mapping[str, float]) -> Severity:
    """Out of memory: error from `error_share` on, else warning. A run that fits: a note."""
    if profile.oom is None:
        return Severity.NOTE
    return Severity.ERROR if part >= limits["error_share"] else Severity.WARNING


def is_largest(case: Case, mine: int) -> bool:
    """No other category has more bytes left to explain."""
    sums: dict[Category, int] = {}
    for block in case.live().values():
        sums[kind_of(block)] = sums.get(kind_of(block), 0) + block.requested_bytes
    return mine >= max(sums.values(), default=0)


def kind_of(block: LiveBlock) -> Category:
    """The category; of what a forward drops on its way, that of everything short-lived."""
    return Category.TEMPORARY if block.passing else block.category


def of_kind(case: Case, kind: Category) -> dict[int, LiveBlock]:
    """What no other finding has blamed yet."""
    return {index: block for index, block in case.live().items() if kind_of(block) is kind}


def named_elsewhere(case: Case, kind: Category, mine: int) -> list[str]:
    """What of a kind other findings have blamed already, so that the numbers of a report add up."""
    rest = bytes_of(block for block in case.profile.live if kind_of(block) is kind) - mine
    return [f"{size(rest)} more of this kind are named by other findings"] if rest > 0.01 * mine else []


def claim(
    case: Case,
    blocks: Mapping[int, LiveBlock],
    title: str,
    limits: Mapping[str, float],
    evidence: Iterable[str],
    remedies: tuple[str, ...] | None = None,
    at_least: Severity = Severity.NOTE,
) -> Claim:
    """A claim that blames these live blocks; the lines that hold most of them become its locations and evidence."""
    total = bytes_of(blocks.values())
    part = share(case.profile, total)
    held = held_by_line(case.profile, blocks.values())
    found = severity(case.profile, part, limits)
    if at_least is Severity.WARNING and found is Severity.NOTE:
        found = Severity.WARNING
    if at_least is Severity.ERROR:
        found = Severity.ERROR
    return Claim(
        severity=found,
        title=title,
        bytes=total,
        share=part,
        confidence=confidence_of(blocks.values()),
        evidence=(*evidence, *(str(row) for row in telling(held[:MAX_LINES])), *_guessed(blocks)),
        blocks=frozenset(blocks),
        locations=locations(held),
        remedies=remedies,
    )


def _guessed(blocks: Mapping[int, LiveBlock]) -> tuple[str, ...]:
    """How much of it rests on sizes alone: people accept an inference when they are told."""
    total = bytes_of(blocks.values())
    frameless = bytes_of(b for b in blocks.values() if b.stack < 0 and b.confidence is Confidence.INFERRED)
    if not total or frameless < 0.05 * total:
        return ()
    return (f"{100 * frameless / total:.0f} % of it was judged without a stack: {_reasons(blocks)}",)


def _reasons(blocks: Mapping[int, LiveBlock]) -> str:
    sums: dict[str, int] = {}
    for block in blocks.values():
        if block.stack < 0:
            sums[block.reason] = sums.get(block.reason, 0) + block.requested_bytes
    return "; ".join(sorted(sums, key=lambda reason: -sums[reason])[:2])


def with_script_line(answer: Claim, profile: DeviceProfile, blocks: Iterable[LiveBlock]) -> Claim:
    """Put the line of the user's script first: the outermost one that most of the bytes come from."""
    lines = Lines(profile.snapshot)
    sums: dict[Location, int] = {}
    for block in blocks:
        location = lines.script(block.stack)
        if location is not None:
            sums[location] = sums.get(location, 0) + block.requested_bytes
    if not sums:
        return answer
    script = max(sums, key=lambda location: sums[location])
    others = tuple(each for each in answer.locations if each != script)
    return replace(answer, locations=(script, *others))
