"""What passes from attribution to the causes, and from the causes to planner and reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ..snapshots.model import DeviceRecording, DeviceSnapshot, Frame, Recording, Snapshot


class Category(str, Enum):
    """What a live byte is for; torch's own words where they exist."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    COMMUNICATION = "communication"
    AUTOCAST_CACHE = "autocast_cache"
    KV_CACHE = "kv_cache"
    UNKNOWN = "unknown"


CATEGORIES: tuple[str, ...] = tuple(category.value for category in Category)


class Confidence(str, Enum):
    EXACT = "exact"  # recorded by oomdoc's hooks
    INFERRED = "inferred"  # from frames, lifetimes, sizes
    UNKNOWN = "unknown"


class Severity(str, Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Location:
    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBlock:
    """One allocation that is alive at the moment looked at.

    `birth` and `death` are event indices of the device's trace: birth -1 = older than the trace, death = number of
    events = never freed in it.
    """

    address: int
    requested_bytes: int
    block_bytes: int  # as handed out by the allocator; equals requested_bytes where replay cannot know it
    birth: int
    death: int
    category: Category
    confidence: Confidence
    reason: str  # one short phrase, e.g. "AccumulateGrad frame", "size multiset x2", "recorded"
    share: float  # 0..1, how far to trust it: the measured precision of the rule
    stack: int  # index into Snapshot.stacks; -1 = none
    module: str | None  # recorded module path
    birth_phase: str | None = None  # in the words of `Mark`; None = older than the trace
    signs: int = 0  # what its stack says: bits of attribution.signs.Sign
    passing: bool = False  # an activation that is dropped before any backward: no graph keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryBytes:
    bytes: int
    confidence: Confidence  # that of its bytes, but for a thousandth (scalars between the phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Live bytes at the peak by category, user line and module."""

    bytes: int
    count: int
    category: Category
    location: Location | None
    module: str | None

    def row(self) -> dict[str, Any]:
        """As reports and the summaries of ranks write it."""
        where = self.location
        return {
            "bytes": self.bytes,
            "count": self.count,
            "category": self.category.value,
            "file": where.file if where else None,
            "line": where.line if where else None,
            "function": where.function if where else None,
            "module": self.module,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """At the event of the highest requested bytes (-1 = before the first event).

    `allocated_bytes` (max_memory_allocated) and `reserved_bytes` (max_memory_reserved) are the highest of the whole
    trace, each at its own moment; None where they cannot be known. DeviceProfile.problems says how far to trust them.
    """

    requested_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    event: int
    step: int | None
    phase: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Reserved and not allocated, at the OOM, else at the peak."""

    bytes: int
    fragmented_bytes: int  # free, but of no use to `for_request_bytes`, and not what a retry gives back either
    largest_free_block_bytes: int
    for_request_bytes: int | None  # the request that failed, else the largest of the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom:
    """The `oom` event that the job failed with: the last of the trace, unless the job went on; and the state at it."""

    event: int
    requested_bytes: int  # rounded to 512 by the allocator
    device_free_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int
    location: Location | None
    step: int | None
    phase: str | None
    signs: int = 0  # what the stack of the request says: bits of attribution.signs.Sign


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """Out-of-memory errors that the script caught and went on from."""

    count: int
    peak_after_bytes: int  # of requested bytes, after the last of them


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """Live requested bytes just after step `step` ended (its optimizer step, or the period found)."""

    step: int
    event: int
    live_bytes: int
    peak_bytes: int  # highest within the step


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """The diagnosis of one device of one rank, before any verdict."""

    rank: int
    device: int
    capacity_bytes: int | None
    outside_bytes: int | None
    start_bytes: int
    final_bytes: int
    peak: Peak
    oom: Oom | None
    cached: Cached | None
    categories: Mapping[Category, CategoryBytes]  # at the OOM when there is one, else at the peak; sums to live bytes
    live: tuple[LiveBlock, ...]  # same moment, largest first
    call_sites: tuple[CallSite, ...]  # largest first
    steps: tuple[StepBytes, ...]  # empty where iterations are not known
    snapshot: Snapshot
    device_snapshot: DeviceSnapshot
    recording: DeviceRecording | None
    problems: tuple[str, ...] = ()
    caught: Caught | None = None  # only where the job did not fail with one
    block_sizes_exact: bool = False  # the replay reproduces the recording: block and cached bytes are PyTorch's own

    def bytes_of(self, category: Category) -> int:
        found = self.categories.get(category)
        return found.bytes if found else 0

    @property
    def live_bytes(self) -> int:
        return sum(each.bytes for each in self.categories.values())

    def frames(self, block: LiveBlock) -> tuple[Frame, ...]:
        return self.snapshot.stacks.of(block.stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """All devices and ranks of one job."""

    devices: tuple[DeviceProfile, ...]

    @property
    def recording(self) -> Recording | None:
        return next((d.snapshot.recording for d in self.devices if d.snapshot.recording), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    code: str  # OOM001...
    name: str  # parameters-dominate
    severity: Severity
    title: str  # one sentence with the numbers
    rank: int | None  # None: a log that does not say it
    device: int | None
    bytes: int  # what the finding explains; findings of one device never blame the same byte twice
    share_of_peak: float
    confidence: Confidence
    evidence: tuple[str, ...]
    locations: tuple[Location, ...]
    remedies: tuple[str, ...]  # names, best first


@dataclass(frozen=True, slots=True, kw_only=True)
class Inconclusive:
    code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    profile: MemoryProfile
    findings: tuple[Finding, ...]  # first = what an expert would say first
    inconclusive: tuple[Inconclusive, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one cause says of one device, before it is put in order with the others."""

    severity: Severity
    title: str
    bytes: int  # what it explains: `blocks`, or bytes that are no live blocks (cached, outside, the request)
    share: float  # of the live bytes at the moment looked at, of the reserved, or of the card: the title says which
    confidence: Confidence
    evidence: tuple[str, ...]
    blocks: frozenset[int] = frozenset()  # indices into DeviceProfile.live that no later cause may blame
    locations: tuple[Location, ...] = ()
    remedies: tuple[str, ...] | None = None  # where they depend on the case; else the cause's REMEDIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One device as a cause sees it: the profile, and the live blocks that an earlier cause has blamed already."""

    profile: DeviceProfile
    blamed: frozenset[int] = frozenset()

    def live(self, *categories: Category) -> dict[int, LiveBlock]:
        """The blocks still to be explained, of these categories (of all, without any), by index in the live set."""
        return {
            index: block
            for index, block in enumerate(self.profile.live)
            if index not in self.blamed and (not categories or block.category in categories)
        }


class Diagnoser(Protocol):
    """One cause: a module with these names. Its docstring is the page that `oomdoc explain CODE` prints."""

    CODE: str
    NAME: str
    REMEDIES: tuple[str, ...]
    # optional: DECISIVE = True (explains a failure on its own), FREE = True (its remedy costs nothing),
    # GENERAL = True (a category that dominates)

    def diagnose(self, case: Case, thresholds: Mapping[str, float]) -> Claim | Inconclusive | None:
        """`thresholds` is this cause's section of configs/thresholds.yaml. None = does not apply."""
        ...
