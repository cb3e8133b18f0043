"""What a remedy is, what it estimates, and what a plan is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Numerics(str, Enum):
    IDENTICAL = "identical"  # the same bits, apart from the order of reductions
    EQUIVALENT = "equivalent"  # the same mathematics at another precision
    CHANGED = "changed"  # another training


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteBand:
    low: int
    expected: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job as the planner sees it: where it runs and what may change."""

    gpu: str | None  # name in configs/gpus.yaml
    capacity_bytes: int | None  # what the allocator can get: total - outside
    world_size: int
    nnodes: int = 1
    batch_size: int | None = None
    intra_link: str | None = None  # nvlink, pcie or sys; None = NVLink where the card has it
    network: str | None = None  # between nodes: a name in configs/links.yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One entry of `remedies:` in oomdoc.yaml: a remedy's name and its options (plain values)."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One remedy (or a combination) as predicted from a profile."""

    settings: tuple[Setting, ...]
    predicted_peak_bytes: ByteBand
    saves_bytes: int
    step_time_factor: Band
    numerics: Numerics
    why: str  # one sentence: what is saved, from what evidence, and what it costs


@dataclass(frozen=True, slots=True)
class NotApplicable:
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    on: str  # virtual | cuda | cpu
    peak_bytes: int  # allocated
    reserved_bytes: int
    fits: bool
    error: str | None = None  # why the run with the remedy could not be judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row of the plan."""

    estimate: Estimate
    fits: bool | None  # predicted; None = inside the band, or no capacity known
    verified: Verified | None = None

    @property
    def name(self) -> str:
        return " + ".join(setting.name for setting in self.estimate.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    candidates: tuple[Candidate, ...]  # best first
    not_applicable: tuple[NotApplicable, ...] = ()


Verify = Callable[[tuple[Setting, ...]], Verified]
