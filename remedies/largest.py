"""The largest value of a range with which a job fits, in few runs of it.

Memory grows with the value in most jobs, in a line (a batch) or a parabola (a length): where runs have shown peaks, the
next value tried is where their curve meets the room, and from there it goes on in doubling strides until the bracket
is closed. Without a curve the bracket is halved. The top of the range is tried early, and a value between the answer
and the top at the end: a job whose memory does not grow with the value is found out and said.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    FITS = "fits"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"  # for another reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One run. Peaks are of the fullest device, None where the run did not come to its end; bytes."""

    value: int
    outcome: Outcome
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    room_bytes: int | None = None  # what the allocator could have had
    steps: int = 0
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """`largest` fits and `limit` (the next value of the range) does not; None where there is no such value."""

    largest: Probe | None
    limit: Probe | None
    probes: tuple[Probe, ...]  # in the order of their values
    notes: tuple[str, ...]
    monotone: bool  # nothing that was seen speaks against it


def largest(values: Sequence[int], run: Callable[[int], Probe], hints: Mapping[int, int] | None = None) -> Search:
    """`values` rise. `hints` are peaks (allocated bytes by value) of the same job on another card."""
    return _Searching(values, run, dict(hints or {})).search()


class _Searching:
    def __init__(self, values: Sequence[int], run: Callable[[int], Probe], hints: dict[int, int]) -> None:
        self.values = values
        self.run = run
        self.peaks = hints
        self.seen: dict[int, Probe] = {}  # by index
        self.room: int | None = None

    def search(self) -> Search:
        low, high = self._ends()
        stride, last = 1, None
        while high - low > 1:
            index = self._next(low, high, stride, last)
            outcome = self._probe(index).outcome
            stride = stride * 2 if outcome is last else 1
            last = outcome
            if outcome is Outcome.FITS:
                low = index
            else:
                high = index
        self._check_between(high)
        return self._result(low, high)

    def _ends(self) -> tuple[int, int]:
        """Indices between which the answer lies: the first fits (or is -1), the second does not (or is the end)."""
        low = 0
        first = self._probe(low)
        while first.outcome is Outcome.FAILED and 2 * low + 1 < len(self.values) and len(self.seen) < 4:
            low = 2 * low + 1  # a batch of 1 may be too few for a job, and say nothing of 8
            first = self._probe(low)
        if first.outcome is not Outcome.FITS:
            return (-1, 0) if low == 0 else (-1, low if first.outcome is Outcome.OUT_OF_MEMORY else 0)
        top = len(self.values) - 1
        if top == low:
            return low, top + 1
        if self._probe(top).outcome is Outcome.FITS:
            return top, top + 1
        return low, top

    def _next(self, low: int, high: int, stride: int, last: Outcome | None) -> int:
        meets = self._meets()
        # a curve that goes on through what did not fit is none
        if meets is None or (high < len(self.values) and meets > 1.03 * self.values[high] + 1):
            wide = high + 1 > 4 * (low + 2)
            index = math.isqrt((low + 2) * (high + 1)) - 1 if wide else (low + high) // 2
        else:
            index = bisect.bisect_right(self.values, meets) - 1
            if last is Outcome.FITS:
                index = max(index, low + stride)
            elif last is not None:
                index = min(index, high - stride)
        return min(max(index, low + 1), high - 1)

    def _meets(self) -> float | None:
        """The value whose peak fills the room, if peaks go on in the parabola through the three largest values known.

        In a line through two, or where the parabola bends down; None where they do not rise.
        """
        if self.room is None or len(self.peaks) < 2:
            return None
        known = [(value, self.peaks[value]) for value in sorted(self.peaks)][-3:]
        (x1, y1), (x2, y2) = known[-2:]
        slope, bend = (y2 - y1) / (x2 - x1), 0.0
        if len(known) == 3:
            x0, y0 = known[0]
            bend = max(0.0, (slope - (y1 - y0) / (x1 - x0)) / (x2 - x0))
        if slope <= 0:
            return None
        # y = y2 + (x - x2) (slope + bend (x - x1)), which is the room at an x above x2
        rise = slope + bend * (x2 - x1)
        left = self.room - y2
        if bend * left < 1e-9 * rise * rise:
            return x2 + left / rise
        return x2 + (math.sqrt(max(0.0, rise * rise + 4 * bend * left)) - rise) / (2 * bend)

    def _probe(self, index: int) -> Probe:
        probe = self.seen[index] = self.run(self.values[index])
        self.room = probe.room_bytes if probe.room_bytes is not None else self.room
        if probe.outcome is Outcome.FITS and probe.allocated_bytes is not None:
            self.peaks[probe.value] = probe.allocated_bytes
        return probe

    def _check_between(self, high: int) -> None:
        top = len(self.values) - 1
        middle = (high + top) // 2
        if top in self.seen and high < middle < top and middle not in self.seen:
            self._probe(middle)

    def _result(self, low: int, high: int) -> Search:
        best = self.seen.get(low)
        probes = tuple(self.seen[index] for index in sorted(self.seen))
        notes = [*self._failures(probes), *self._against(probes, best)]
        monotone = len(notes) == len(self._failures(probes))
        if best is not None and low == len(self.values) - 1:
            notes.append("the largest value of the range fits: more may fit")
        limit = self.seen.get(high)
        return Search(largest=best, limit=limit, probes=probes, notes=tuple(notes), monotone=monotone)

    @staticmethod
    def _failures(probes: Sequence[Probe]) -> list[str]:
        failed = [probe for probe in probes if probe.outcome is Outcome.FAILED]
        return [f"{probe.value} failed for another reason than memory: {probe.detail}" for probe in failed[:2]]

    @staticmethod
    def _against(probes: Sequence[Probe], best: Probe | None) -> list[str]:
        """What speaks against memory growing with the value."""
        notes = []
        above = [p for p in probes if best is not None and p.value > best.value and p.outcome is Outcome.FITS]
        if above:
            notes.append(
                f"{above[0].value} fits although a smaller value does not: memory does not grow with this value, and "
                "others that were not tried may fit or not"
            )
        fitting = [p for p in probes if p.outcome is Outcome.FITS and p.allocated_bytes is not None]
        for one, other in itertools.pairwise(fitting):
            if (other.allocated_bytes or 0) < (one.allocated_bytes or 0):
                notes.append(
                    f"the peak falls from {one.value} to {other.value}: memory does not grow with this value "
                    "throughout, and a value between two that fit may not"
                )
                break
        return notes
