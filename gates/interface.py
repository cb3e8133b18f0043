"""What a gate is made of: the limits of a job, what was measured, what is compared with it, and the judgement."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..diagnosers.interface import Category
from .metric import Metric as Metric

if TYPE_CHECKING:
    from ..diagnosers.compare import CategoryChange  # the analysis of a log starts without it
    from ..remedies.interface import Candidate


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes, or a share of something: `36GiB`, `2%`."""

    bytes: int | None = None
    share: float | None = None  # 0.02 for 2 %

    def of(self, whole: int) -> int:
        """In bytes, rounded down."""
        return int(whole * self.share) if self.share is not None else self.bytes or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All that are given have to hold; none = the job has to fit on its card."""

    metric: Metric = Metric.ALLOCATED
    budget_bytes: int | None = None
    headroom: Amount | None = None  # of the card, beside the context and the peak
    growth: Amount | None = None  # over the baseline's peak

    @property
    def given(self) -> bool:
        return any(each is not None for each in (self.budget_bytes, self.headroom, self.growth))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Live bytes at the peak by category, kind of module, and line of code.

    A line is known by its text within its function, so that code which only moves is no change. `code` is None where
    the source cannot be read; then `line` tells lines apart. `file` is None for blocks without a Python frame.
    """

    category: Category
    file: str | None
    function: str | None
    code: str | None
    module: str | None  # `blocks.*.mlp`
    bytes: int
    blocks: int
    line: int | None = None  # where it is now; a baseline does not keep it


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The device with the highest peak of a job: what the limits are held against, and what a baseline keeps of it."""

    gpu: str | None
    torch: str | None
    world_size: int
    rank: int
    device: int
    requested_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    categories: dict[Category, int]  # live bytes at the peak
    lines: tuple[Line, ...]  # in the order of the code; those too small to matter are left out

    def peak(self, metric: Metric) -> int | None:
        return {
            Metric.ALLOCATED: self.allocated_bytes,
            Metric.RESERVED: self.reserved_bytes,
            Metric.REQUESTED: self.requested_bytes,
        }[metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineMoved:
    """A line that holds more or less than in the baseline; `before` None = new, `after` None = gone."""

    before: Line | None
    after: Line | None

    @property
    def bytes(self) -> int:
        return (self.after.bytes if self.after else 0) - (self.before.bytes if self.before else 0)

    @property
    def now(self) -> Line:
        found = self.after or self.before
        assert found is not None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """A line that was added or changed since the baseline was committed."""

    file: str
    line: int
    code: str  # its text


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One limit of a job."""

    name: str  # fits | budget | headroom | growth | baseline
    passed: bool
    limit_bytes: int | None  # the most that the peak may be
    text: str  # what was asked for, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The judgement of one job."""

    job: str
    passed: bool
    metric: Metric
    peak_bytes: int
    checks: tuple[Check, ...]
    budget_bytes: int | None  # the tightest of budget and headroom
    baseline_bytes: int | None
    categories: tuple["CategoryChange", ...] = ()  # against the baseline, largest first
    moved: tuple[LineMoved, ...] = ()  # the same; their bytes sum to those of `categories`
    held: tuple[Line, ...] = ()  # what holds the peak, largest first
    changes: tuple[CodeChange, ...] = ()  # since the baseline was committed, in files that allocate
    notes: tuple[str, ...] = ()  # what makes the comparison doubtful
    remedy: "Candidate | None" = None  # the first that brings the peak below every limit, when one is exceeded

    @property
    def limit_bytes(self) -> int | None:
        """The tightest of all limits."""
        return min((each.limit_bytes for each in self.checks if each.limit_bytes is not None), default=None)
