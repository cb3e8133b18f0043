"""The ranks of a job side by side, each from a summary of some kilobytes: who failed first, who stands out, and why.

A summary is what a rank could tell of itself when it ended; nothing here needs a snapshot, so that a thousand ranks are
merged in a moment. Times are Unix times of the ranks' own hosts.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .interface import Diagnosis
from .text import size

SCHEMA = "oomdoc.summary/1"
MOST_SITES = 8
# A rank stands out from its pipeline stage by this share of the stage's median: sharding rounds by far less than 1 %,
# and uneven batches within what a plan leaves as headroom by less than a tenth.
STANDS_OUT_SHARE = 0.1
SAME_CLOCK_SECONDS = 1.0  # hosts that keep time by NTP agree better than this


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """One rank, at the out-of-memory that it failed with, else at its peak. Bytes; None = not known."""

    rank: int
    world_size: int
    host: str = ""
    device: int = 0
    card: str = ""  # the card's UUID
    capacity_bytes: int | None = None
    outside_bytes: int | None = None
    requested_bytes: int = 0  # of tensors, at the peak
    reserved_bytes: int | None = None
    categories: Mapping[str, int] = field(default_factory=dict)
    sites: tuple[Mapping[str, Any], ...] = ()  # as `call_sites` of the report
    finding: str | None = None  # code and title of the first
    out_of_memory: bool = False
    oom_time: float | None = None
    oom_asked_bytes: int | None = None
    step: int | None = None
    phase: str | None = None
    stage: str = ""  # the same in ranks that hold the same modules: a pipeline stage
    ended: str | None = None
    exit_status: int = 0

    @property
    def held_bytes(self) -> int:
        """What counts against the card."""
        return self.requested_bytes if self.reserved_bytes is None else self.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Ranks with the same modules. `lowest`, `median` and `highest` are bytes held at the peak."""

    ranks: tuple[int, ...]
    lowest: int
    median: int
    highest: int
    lowest_rank: int
    highest_rank: int
    above: tuple[int, ...]  # ranks that stand out


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The job. `failures` in the order of their times; `shared`: ranks that use one card together."""

    world_size: int
    summaries: tuple[RankSummary, ...]
    failures: tuple[RankSummary, ...]
    stages: tuple[Stage, ...]
    shared: tuple[tuple[str, tuple[int, ...]], ...]  # card and host in words, ranks
    missing: int  # ranks that left no summary
    told: tuple[str, ...]  # what an expert would say, in sentences

    @property
    def first(self) -> RankSummary | None:
        return self.failures[0] if self.failures else None

    def telling(self) -> tuple[int, ...]:
        """The ranks whose snapshots show most: who failed first, who holds most and least."""
        if not self.summaries:
            return ()
        by_size = sorted(self.summaries, key=lambda each: (each.held_bytes, -each.rank))
        first = [self.failures[0]] if self.failures else []
        return tuple(dict.fromkeys(each.rank for each in (*first, by_size[-1], by_size[0])))


def summarise(diagnosis: Diagnosis, *, oom_time: float | None, host: str, exit_status: int = 0) -> RankSummary | None:
    """Of a rank's own snapshot; its fullest device, the failed one first. None where nothing was on a GPU."""
    devices = diagnosis.profile.devices
    if not devices:
        return None
    failed = [each for each in devices if each.oom is not None]
    device = max(failed or devices, key=lambda each: each.peak.reserved_bytes or each.peak.requested_bytes)
    recording = device.snapshot.recording
    facts = recording.facts if recording else {}
    first = next((each for each in diagnosis.findings if each.device == device.device), None)
    oom = device.oom
    ended = facts.get("ended")
    return RankSummary(
        rank=device.rank,
        world_size=recording.world_size if recording else 1,
        host=host,
        device=device.device,
        card=_card(facts, device.device),
        capacity_bytes=device.capacity_bytes,
        outside_bytes=device.outside_bytes,
        requested_bytes=device.peak.requested_bytes,
        reserved_bytes=device.peak.reserved_bytes,
        categories={category.value: held.bytes for category, held in device.categories.items()},
        sites=tuple(site.row() for site in device.call_sites[:MOST_SITES]),
        finding=None if first is None else f"{first.code} {first.title}",
        out_of_memory=oom is not None,
        oom_time=oom_time if oom is not None else None,
        oom_asked_bytes=None if oom is None else oom.requested_bytes,
        step=device.peak.step if oom is None else oom.step,
        phase=device.peak.phase if oom is None else oom.phase,
        stage=_stage(facts),
        ended=ended if isinstance(ended, str) else None,
        exit_status=exit_status,
    )


def _card(facts: Mapping[str, object], device: int) -> str:
    cards = facts.get("cards")
    for each in cards if isinstance(cards, list | tuple) else ():
        if isinstance(each, Mapping) and each.get("device") == device:
            return str(each.get("uuid") or "")
    return ""


def _stage(facts: Mapping[str, object]) -> str:
    """A short text that is equal for equal sets of modules."""
    import hashlib

    modules = facts.get("modules")
    names = sorted(map(str, modules)) if isinstance(modules, Mapping) else []
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12] if names else ""


def merge(summaries: Iterable[RankSummary]) -> Ranks | None:
    """None without any. One summary a rank: of several, the last."""
    found = tuple(dict(sorted((each.rank, each) for each in summaries)).values())
    if not found:
        return None
    world_size = max(each.world_size for each in found)
    failures = sorted((each for each in found if each.out_of_memory), key=lambda each: (each.oom_time or 0, each.rank))
    ranks = Ranks(
        world_size=world_size,
        summaries=found,
        failures=tuple(failures),
        stages=_stages(found),
        shared=_shared(found),
        missing=max(0, world_size - len(found)),
        told=(),
    )
    from dataclasses import replace

    return replace(ranks, told=tuple(_tell(ranks)))


def _stages(summaries: Sequence[RankSummary]) -> tuple[Stage, ...]:
    groups: dict[str, list[RankSummary]] = {}
    for each in summaries:
        groups.setdefault(each.stage, []).append(each)
    stages = []
    for members in groups.values():
        ordered = sorted(members, key=lambda each: each.held_bytes)
        median = int(statistics.median_low([each.held_bytes for each in ordered]))
        stages.append(
            Stage(
                ranks=tuple(sorted(each.rank for each in members)),
                lowest=ordered[0].held_bytes,
                median=median,
                highest=ordered[-1].held_bytes,
                lowest_rank=ordered[0].rank,
                highest_rank=ordered[-1].rank,
                above=tuple(e.rank for e in ordered[::-1] if e.held_bytes > (1 + STANDS_OUT_SHARE) * median),
            )
        )
    return tuple(sorted(stages, key=lambda each: each.ranks))


def _shared(summaries: Sequence[RankSummary]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    users: dict[tuple[str, str], list[int]] = {}
    for each in summaries:
        if each.card:
            users.setdefault((each.host, each.card), []).append(each.rank)
    return tuple(
        (f"{card} on {host}" if host else card, tuple(ranks)) for (host, card), ranks in users.items() if len(ranks) > 1
    )


def _tell(ranks: Ranks) -> Iterable[str]:
    if ranks.failures:
        yield _first_failure(ranks)
    for card, users in ranks.shared:
        yield (
            f"{numbers(users)} use one card together ({card}): set the device of each rank from LOCAL_RANK before its "
            "first CUDA call"
        )
    if len(ranks.stages) > 1:
        most, least = (pick(ranks.stages, key=lambda each: each.median) for pick in (max, min))
        yield (
            f"{len(ranks.stages)} groups of ranks hold different modules (pipeline stages): {numbers(most.ranks)} hold "
            f"{size(most.median)} at the peak, {numbers(least.ranks)} {size(least.median)}"
        )
    for stage in ranks.stages:
        if stage.above and len(stage.ranks) > 2:
            yield (
                f"{numbers(stage.above)} stand{'s' if len(stage.above) == 1 else ''} out: up to "
                f"{size(stage.highest)} at the peak, where the middle one of {len(stage.ranks)} ranks with the same "
                f"modules holds {size(stage.median)}"
            )
    if ranks.missing:
        yield f"{ranks.missing} of {ranks.world_size} ranks left no summary: killed, or on another file system"


def _first_failure(ranks: Ranks) -> str:
    first = ranks.failures[0]
    when = ", ".join(filter(None, (f"step {first.step}" if first.step else "", first.phase or "")))
    said = f"rank {first.rank}{f' ({first.host})' if first.host else ''} ran out of memory first"
    said += f", in {when}" if when else ""
    others = ranks.failures[1:]
    if not others:
        return f"{said}; no other rank did"
    later = (others[0].oom_time or 0) - (first.oom_time or 0)
    doubt = (
        "" if later > SAME_CLOCK_SECONDS or len({each.host for each in ranks.failures}) == 1 else ", by their clocks"
    )
    return f"{said}; {len(others)} more followed, the next (rank {others[0].rank}) {later:.1f} s later{doubt}"


def numbers(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0 to 7`, `ranks 1, 5 and 12 more`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) <= 5:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:4]))} and {len(ranks) - 4} more"
