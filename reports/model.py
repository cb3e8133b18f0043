"""The one record that every renderer takes."""

from dataclasses import dataclass

from ..diagnosers.interface import Diagnosis
from ..remedies.interface import Plan


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    passed: bool
    peak_bytes: int
    budget_bytes: int | None
    baseline_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `oomdoc.report/1` (configs/report.schema.json) says, before it is drawn."""

    source: Source
    verdict: Verdict
    diagnosis: Diagnosis
    plan: Plan | None = None
    gate: Gate | None = None
    next_commands: tuple[str, ...] = ()
