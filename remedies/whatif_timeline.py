"""The lifetimes of a recorded run as columns that a remedy can change, and the peak that follows.

After a change the peak is at another moment than before, so nothing is subtracted from the old peak: every
allocation keeps its birth, death and size, a remedy transforms them, and the peak is computed again over the whole
time. Time is the event index of the trace; what a remedy inserts gets times between two events.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..allocator.config import AllocatorConfig
from ..allocator.machine import Allocator, OutOfMemory
from ..diagnosers.interface import CATEGORIES, Category

FORWARD, BACKWARD, OPTIMIZER, OTHER, SETUP = "forward", "backward", "optimizer", "other", "setup"
PHASES = (SETUP, FORWARD, BACKWARD, OPTIMIZER, OTHER)

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of one phase of one step: events [start, end)."""

    phase: str
    step: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One row per allocation; every column has shape (rows,). `birth` -1 = older than the trace."""

    size: NDArray[np.int64]  # requested bytes
    birth: NDArray[np.float64]
    death: NDArray[np.float64]
    category: NDArray[np.int8]  # index into diagnosers.interface.CATEGORIES
    phase: NDArray[np.int8]  # at birth, index into PHASES
    step: NDArray[np.int32]  # at birth
    module: NDArray[np.int32]  # index into `modules`, -1 = none or not known
    stack: NDArray[np.int32]  # index into the snapshot's stacks
    stream: NDArray[np.uint64]
    events: int
    modules: tuple[str, ...]
    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.size)

    def is_category(self, *categories: Category) -> Mask:
        return np.isin(self.category, [CATEGORIES.index(each.value) for each in categories])

    def is_phase(self, *phases: str) -> Mask:
        return np.isin(self.phase, [PHASES.index(each) for each in phases])

    def under(self, path: str) -> Mask:
        """Rows born in the module at `path` or in one inside it."""
        inside = path + "."
        ids = [i for i, name in enumerate(self.modules) if name == path or name.startswith(inside)]
        return np.isin(self.module, ids)

    def resized(self, rows: Mask, factor: float) -> "Timeline":
        """The sizes of `rows` times `factor`, at least one byte."""
        size = self.size.copy()
        size[rows] = np.maximum(1, np.ceil(size[rows] * factor)).astype(np.int64)
        return replace(self, size=size)

    def without(self, rows: Mask) -> "Timeline":
        return self.take(np.flatnonzero(~rows))

    def take(self, rows: NDArray[np.intp]) -> "Timeline":
        return replace(self, **_columns({name: getattr(self, name)[rows] for name in _COLUMNS}))

    def with_death(self, death: NDArray[np.float64]) -> "Timeline":
        return replace(self, **_columns({"death": death}))

    def joined(self, *others: "Timeline") -> "Timeline":
        """The rows of this timeline and of the others (of the same trace)."""
        parts = (self, *others)
        return replace(self, **_columns({name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS}))

    def copies(
        self,
        rows: NDArray[np.intp],
        *,
        birth: NDArray[np.float64],
        death: NDArray[np.float64],
        size: NDArray[np.int64] | None = None,
        category: Category | None = None,
        phase: str | None = None,
    ) -> "Timeline":
        """New rows in the image of `rows`, with other times (and size, category, phase where given)."""
        new = self.take(rows)
        changes: dict[str, Any] = {"birth": birth, "death": death}
        if size is not None:
            changes["size"] = size
        if category is not None:
            changes["category"] = np.full(len(rows), CATEGORIES.index(category.value), np.int8)
        if phase is not None:
            changes["phase"] = np.full(len(rows), PHASES.index(phase), np.int8)
        return replace(new, **_columns(changes))

    def added(
        self, spans: Iterable[tuple[int, float, float]], *, category: Category, phase: str, step: int = 0
    ) -> "Timeline":
        """With new rows (bytes, birth, death) that have no model in the trace; empty spans are left out."""
        kept = [(size, birth, death) for size, birth, death in spans if size > 0 and death > birth]
        n = len(kept)
        if not n:
            return self
        return self.joined(
            replace(
                self,
                size=np.array([each[0] for each in kept], np.int64),
                birth=np.array([each[1] for each in kept], np.float64),
                death=np.array([each[2] for each in kept], np.float64),
                category=np.full(n, CATEGORIES.index(category.value), np.int8),
                phase=np.full(n, PHASES.index(phase), np.int8),
                step=np.full(n, step, np.int32),
                module=np.full(n, -1, np.int32),
                stack=np.full(n, -1, np.int32),
                stream=np.zeros(n, np.uint64),
            )
        )

    def self_check(self) -> tuple[str, ...]:
        """What no timeline may be, whatever a remedy made of it; empty = fine."""
        problems = []
        backwards = int((self.death < self.birth).sum())
        if backwards:
            problems.append(f"{backwards} allocations die before they are born")
        if len(self) and int(self.size.min()) <= 0:
            problems.append("an allocation has no bytes")
        if len({len(getattr(self, name)) for name in _COLUMNS}) > 1:
            problems.append("columns differ in length")
        return tuple(problems)

    def peak(self) -> "PeakAt":
        """The highest sum of requested bytes, and when; births come before deaths of the same time."""
        time, change, _ = self._changes()
        live = np.cumsum(change)
        at = int(live.argmax()) if len(live) else 0
        return PeakAt(int(live[at]) if len(live) else 0, float(time[at]) if len(time) else -1.0)

    def phase_at(self, time: float) -> tuple[int, str]:
        """Step and phase at a time; (0, "other") outside all runs."""
        for run in self.runs:
            if run.start <= time < run.end:
                return run.step, run.phase
        return 0, OTHER

    def replay(self, *, config: AllocatorConfig | None = None, capacity_bytes: int | None = None) -> "Replayed":
        """What PyTorch's allocator would hand out and hold for these lifetimes.

        With `capacity_bytes` the allocator retries as PyTorch's does; `fits` tells whether it got through. Peaks are
        then those up to the failure.
        """
        allocator = Allocator(config, capacity_bytes) if capacity_bytes is not None else Allocator(config)
        _, change, row = self._changes()
        addresses: dict[int, int] = {}
        sizes, streams = self.size.tolist(), self.stream.tolist()
        peak_allocated = peak_reserved = 0
        fits = True
        try:
            for index, delta in zip(row.tolist(), change.tolist(), strict=True):
                if delta > 0:
                    addresses[index] = allocator.malloc(sizes[index], streams[index])
                elif index in addresses:
                    allocator.free(addresses.pop(index))
        except OutOfMemory:
            fits = False
        stats = allocator.memory_stats()
        peak_allocated, peak_reserved = stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]
        return Replayed(peak_allocated, peak_reserved, fits)

    def _changes(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.intp]]:
        """Time, change of live bytes and row of every birth and death in the trace, in order."""
        size = self.size
        rows = np.arange(len(size))
        dies = self.death < self.events
        time = np.concatenate([self.birth, self.death[dies]])
        change = np.concatenate([size, -size[dies]])
        row = np.concatenate([rows, rows[dies]])
        order = np.lexsort((row, change < 0, time))
        return time[order], change[order], row[order]


_COLUMNS = ("size", "birth", "death", "category", "phase", "step", "module", "stack", "stream")


def _columns(columns: dict[str, Any]) -> dict[str, Any]:
    """For `dataclasses.replace`: columns by name, whose types differ."""
    return columns


@dataclass(frozen=True, slots=True)
class PeakAt:
    bytes: int
    time: float


@dataclass(frozen=True, slots=True)
class Replayed:
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fits: bool


def runs_of(marks: Iterable[tuple[int, int, str]], events: int) -> tuple[Run, ...]:
    """Runs from (event, step, phase) marks: each holds from its event on."""
    ordered = sorted(marks, key=lambda mark: mark[0])
    ends = [mark[0] for mark in ordered[1:]] + [events]
    return tuple(
        Run(phase, step, start, end) for (start, step, phase), end in zip(ordered, ends, strict=True) if end > start
    )


def phases_at(runs: tuple[Run, ...], birth: NDArray[np.float64]) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Phase index and step of each birth; setup and 0 before the first run."""
    starts = np.array([run.start for run in runs], np.float64)
    at = np.searchsorted(starts, birth, side="right") - 1
    phase = np.array([PHASES.index(run.phase) if run.phase in PHASES else PHASES.index(OTHER) for run in runs] + [0])
    step = np.array([run.step for run in runs] + [0])
    return phase[at].astype(np.int8), step[at].astype(np.int32)
