"""What the remedies' estimates share: the job as a timeline, and from a changed timeline to a band of bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from ..allocator.config import AllocatorConfig
from ..diagnosers.interface import DeviceProfile
from .interface import Band, ByteBand, Effort, Job, NotApplicable, Numerics, Setting
from .job_facts import JobFacts, read
from .live_rows import timeline_of
from .passes import BlockPass, block_passes
from .structure.derive import derived
from .whatif_timeline import Replayed, Timeline


@dataclass(frozen=True)
class Case:
    """A job to be changed: its profile, its facts, and its timeline after the changes so far."""

    profile: DeviceProfile
    job: Job
    facts: JobFacts
    timeline: Timeline
    autocast: bool = False  # mixed precision is among the changes so far

    @cached_property
    def allocated_before(self) -> int:
        """Peak of allocated bytes of this timeline."""
        return self.timeline.replay().peak_allocated_bytes

    @cached_property
    def passes(self) -> tuple[BlockPass, ...]:
        return block_passes(self.timeline, self.facts.blocks)

    def changed(self, timeline: Timeline) -> "Case":
        return replace(self, timeline=timeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A remedy's settings at work on a timeline: what it becomes, and what that costs.

    `low` and `high` are timelines at the ends of what the evidence leaves open; None = the same as `expected`.
    """

    setting: Setting
    expected: Timeline
    low: Timeline | None
    high: Timeline | None
    step_time_factor: Band
    numerics: Numerics
    why: str
    doubt: str = ""  # why the band of the peak has a width
    time_doubt: str = ""  # why the band of the step time has one
    by_hand: str = ""  # why `run --apply` cannot make the change for this script, where it can for others
    config: AllocatorConfig | None = None  # other allocator settings, where the remedy is one


class Remedy(Protocol):
    """One change: a module with these names. Its docstring is the page that `oomdoc explain NAME` prints."""

    NAME: str
    NUMERICS: Numerics
    EFFORT: Effort

    def settings(self, case: Case) -> tuple[Setting, ...] | NotApplicable:
        """The settings worth trying for this job, or why there are none."""
        ...

    def change(self, case: Case, options: Mapping[str, Any]) -> Change | NotApplicable:
        """What the job's timeline becomes with these options, and what that costs."""
        ...


def case_of(profile: DeviceProfile, job: Job) -> Case:
    """Raises nothing; a profile without a trace gives an empty timeline.

    Where oomdoc did not record the job, its structure is read from the frames.
    """
    facts, timeline = read(profile.snapshot.recording), timeline_of(profile)
    if not facts.known:
        timeline, facts = derived(timeline, profile.snapshot)
    return Case(profile=profile, job=job, facts=facts, timeline=timeline)


def replayed(timeline: Timeline, job: Job, config: AllocatorConfig | None = None) -> Replayed:
    """Through the allocator: at the job's capacity, and where that fails without any, so that a peak is known."""
    if job.capacity_bytes is not None:
        limited = timeline.replay(config=config, capacity_bytes=job.capacity_bytes)
        if limited.fits:
            return limited
        return replace(timeline.replay(config=config), fits=False)
    return timeline.replay(config=config)


def product(bands: Sequence[Band]) -> Band:
    low = expected = high = 1.0
    for band in bands:
        low, expected, high = low * band.low, expected * band.expected, high * band.high
    return Band(low=low, expected=expected, high=high)


def worst(numerics: Sequence[Numerics]) -> Numerics:
    order = list(Numerics)
    return max(numerics, key=order.index, default=Numerics.IDENTICAL)


def band_of(expected: int, low: int, high: int, margin: float) -> ByteBand:
    """`margin` is a share: how far a rerun has been seen to differ from the prediction."""
    values = sorted((expected, low, high))
    return ByteBand(low=int(values[0] * (1 - margin)), expected=expected, high=int(values[-1] * (1 + margin)))
