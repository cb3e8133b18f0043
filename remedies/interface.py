"""What a remedy is, what it estimates, and what a plan is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Numerics(str, Enum):
    IDENTICAL = "identical"  # the same bits, apart from the order of reductions
    EQUIVALENT = "equivalent"  # the same mathematics at another precision
    CHANGED = "changed"  # another training


class Effort(str, Enum):
    """What making the change asks of who makes it."""

    REPAIR = "repair"  # a slip of the script, to be put right whatever else is done
    SETTING = "setting"  # an argument or a key, here and in the frameworks
    LINES = "lines"  # some lines of the script, or another library
    REWORK = "rework"  # the model split, another launcher, more machines


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
class Constraints:
    """What a plan has to keep to, as the user sets it."""

    only: tuple[str, ...] = ()  # names of remedies; empty = all
    without: tuple[str, ...] = ()
    keep_numerics: bool = False
    max_slowdown: float | None = None  # expected factor of the step time
    headroom: str | None = None  # what has to stay free on the card: a size, or a share such as 5%
    topology: str | None = None  # NODESxGPUS:CARD:LINK:NETWORK


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
    spread: str = ""  # why the two bands are as wide as they are
    by_hand: str = ""  # why `run --apply` cannot make the change for this script


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
    pareto: bool = False  # no other needs less memory without taking more time or changing more of the numbers

    @property
    def name(self) -> str:
        return " + ".join(setting.name for setting in self.estimate.settings)

    @property
    def is_over(self) -> bool:
        """Seen not to fit, else predicted not to."""
        seen = self.verified
        return self.fits is False if seen is None or seen.error is not None else not seen.fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One collective of a training step on the job's topology, and where its time goes."""

    strategy: str  # ddp | fsdp | hsdp
    what: str  # which tensors, e.g. "gradients of a block"
    collective: str
    count: int  # in one step
    nbytes: int
    seconds: float  # of one
    algorithm: str
    protocol: str
    bound: str  # intra | inter: the link that the bytes wait for
    half_bandwidth_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """What the ways to share a job among its GPUs cost in a step."""

    exchanges: tuple[Exchange, ...]
    seconds: Mapping[str, float]  # strategy -> of all its collectives, hidden or not
    step_time_factor: Mapping[str, Band]  # strategy -> over the step without them; empty where the step is not known
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    candidates: tuple[Candidate, ...]  # best first
    not_applicable: tuple[NotApplicable, ...] = ()
    way_out: tuple[str, ...] = ()  # where nothing fits: what would
    communication: Communication | None = None  # for more than one GPU


Verify = Callable[[tuple[Setting, ...]], Verified]
