"""The one record that every renderer takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..diagnosers.interface import Diagnosis, Location
from ..gates.interface import Gate
from ..remedies.interface import Plan

if TYPE_CHECKING:
    from ..diagnosers.compare import Comparison  # the other commands start without it
    from ..diagnosers.explanation import Explanation
    from ..diagnosers.from_log import Log
    from ..diagnosers.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: str
    kind: str  # cuda | virtual | log
    torch: str | None
    gpu: str | None
    world_size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    out_of_memory: bool
    rank: int | None
    device: int | None
    summary: str
    ended: str | None = None  # what cut the script short, where it was not out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReplay:
    """One device's trace through the allocator, as recorded (`alloc_conf` None) or under other settings."""

    rank: int
    device: int
    alloc_conf: str | None
    capacity_bytes: int | None
    alloc_events: int
    matched_addresses: int
    segment_events: int
    matched_segments: int
    peak_reserved_bytes: int
    fits: bool | None  # None: no capacity to compare with
    departure: str | None  # where and why the replay first left the recording
    notes: tuple[str, ...] = ()  # first failure, retries, what had to be assumed


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of the user's file around a location."""

    first_line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one process held of a card, one figure per sample, in bytes."""

    process: str  # "rank 0", "process 4242"
    own: bool  # a rank of this job
    bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...] | None = None  # of that PyTorch's allocator; None where it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSamples:
    """A card as NVML told of it while the job ran."""

    host: str
    card: str  # its UUID
    total_bytes: int
    seconds: tuple[float, ...]  # since the first sample
    used_bytes: tuple[int, ...]
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `oomdoc.report/1` (configs/report.schema.json) says, before it is drawn."""

    source: Source
    verdict: Verdict
    diagnosis: Diagnosis
    plan: Plan | None = None
    gate: Gate | None = None
    replays: tuple[DeviceReplay, ...] = ()
    next_commands: tuple[str, ...] = ()
    ranks: "Ranks | None" = None  # the job's ranks side by side, where each left a summary
    log: "Log | None" = None  # where messages were read, not recordings: then the profile has no devices
    excerpts: Mapping[Location, Excerpt] = field(default_factory=dict)
    explanation: "Explanation | None" = None  # of the fullest device
    cards: tuple[CardSamples, ...] = ()  # those of the run directory's ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What `oomdoc.diff/1` (configs/diff.schema.json) says, before it is drawn."""

    before_path: str
    after_path: str
    comparison: "Comparison"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One job of a gate: its report, whose `gate` is set; or why it could not be judged."""

    name: str
    report: Report | None = None
    failure: str | None = None

    @property
    def gate(self) -> Gate | None:
        return self.report.gate if self.report else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """What `oomdoc.gate/1` (configs/gate.schema.json) says, before it is drawn."""

    jobs: tuple[Judged, ...]
    next_commands: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(job.gate is not None and job.gate.passed for job in self.jobs)
