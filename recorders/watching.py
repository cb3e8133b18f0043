"""Whether a job that still runs is about to run out of memory: pure, from a few numbers a step.

Three things are seen: little room left, cached memory that grows in unusable pieces, and bytes that stay behind step
after step. A leak is told only once it is steady: what a warm-up adds stops by itself, and one long batch is one step.
"""

import statistics
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from ..diagnosers.text import size

WARM_UP_STEPS = 3  # optimizer state, cuBLAS workspaces and the allocator's cache come in these
WINDOW_STEPS = 10  # the growth of so many steps has to agree
STEADY_SHARE = 0.8  # of them have to grow
FORESIGHT = 20  # growth is believed to go on for so many times as long as it was seen: a long warm-up is no leak
FRAGMENTED_SHARE = 0.15  # of the card cached and not used at the step's peak: more than a step's slack
WARN_AT = 0.92  # share of the card in use from which on headroom is told
AGAIN_SHARE = 0.25  # a leak is told again when the estimate has fallen to this share of what was told


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """At the end of a step, of the fullest device. Bytes."""

    step: int
    live: int  # allocated now
    peak: int  # the most allocated so far in the run
    reserved: int
    free: int  # what the driver still has
    total: int  # of the card


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    kind: str  # headroom | fragmentation | leak
    step: int
    text: str
    bytes: int  # used, unusable, or grown per step
    steps_left: int | None = None
    location: str | None = None  # file:line of what grows


class Watcher:
    """`warn_at`: the share of the card from which on headroom is told."""

    def __init__(self, warn_at: float = WARN_AT) -> None:
        self.warn_at = warn_at
        self._steps: deque[StepSample] = deque(maxlen=WINDOW_STEPS + 1)
        self._told_full = False
        self._told_fragmented = False
        self._told_left: int | None = None
        self._grew_from: int | None = None  # the step since which it grows steadily
        self._transient = 0  # how far a step's peak is above what the step began with

    def step(self, sample: StepSample) -> list[Warned]:
        before = self._steps[-1] if self._steps else None
        if before is not None and sample.peak > before.peak:
            self._transient = sample.peak - before.live
        elif before is None:
            self._transient = sample.peak - sample.live
        self._steps.append(sample)
        found = [self._headroom(sample), self._fragmentation(sample), self._leak(sample)]
        return [each for each in found if each is not None]

    def _outside(self, sample: StepSample) -> int:
        return max(0, sample.total - sample.free - sample.reserved)

    def _used(self, sample: StepSample) -> int:
        """What the coming step needs again: cached memory is reused, all else is not to be had."""
        return self._outside(sample) + min(sample.reserved, sample.live + self._transient)

    def _headroom(self, sample: StepSample) -> Warned | None:
        used = self._used(sample)
        if used < self.warn_at * sample.total:
            self._told_full = self._told_full and used > (self.warn_at - 0.03) * sample.total  # not at every step
            return None
        if self._told_full:
            return None
        self._told_full = True
        left = sample.total - used
        text = f"{100 * used / sample.total:.0f} % of the card is in use at the peak of a step; {size(left)} are left"
        return Warned(kind="headroom", step=sample.step, text=text, bytes=used)

    def _fragmentation(self, sample: StepSample) -> Warned | None:
        """Reserved beyond what a step uses at its peak, and more so than some steps ago."""
        idle = sample.reserved - min(sample.reserved, sample.live + self._transient)
        first = self._steps[0]
        was = first.reserved - min(first.reserved, first.live + self._transient)
        full = len(self._steps) == self._steps.maxlen
        grown = idle > 1.2 * was and sample.reserved > first.reserved
        if self._told_fragmented or not full or idle < FRAGMENTED_SHARE * sample.total or not grown:
            return None
        self._told_fragmented = True
        text = (
            f"{size(idle)} are cached and of no use at the peak of a step, {size(idle - was)} more than "
            f"{WINDOW_STEPS} steps ago: the free memory is in pieces that are too small"
        )
        return Warned(kind="fragmentation", step=sample.step, text=text, bytes=idle)

    def _leak(self, sample: StepSample) -> Warned | None:
        slope = self.growth()
        if slope is None:
            self._grew_from = None
            return None
        if self._grew_from is None:
            self._grew_from = self._steps[0].step
        left = self.steps_left(slope)
        believed = FORESIGHT * (sample.step - self._grew_from)
        if left > believed or (self._told_left is not None and left > AGAIN_SHARE * self._told_left):
            return None
        self._told_left = left
        text = f"{size(slope)} more stay behind after each step: at this rate out of memory in about {left} steps"
        return Warned(kind="leak", step=sample.step, text=text, bytes=slope, steps_left=left)

    def growth(self) -> int | None:
        """Bytes a step that stay behind, steadily; None where there is no such growth."""
        if len(self._steps) < WINDOW_STEPS + 1 or self._steps[0].step < WARM_UP_STEPS:
            return None
        live = [each.live for each in self._steps]
        growths = [after - before for before, after in pairwise(live)]
        if sum(each > 0 for each in growths) < STEADY_SHARE * len(growths):
            return None
        half = len(growths) // 2
        slope = statistics.median(growths)
        # a warm-up slows down: in both halves about the same, or it is none
        both = min(statistics.mean(growths[:half]), statistics.mean(growths[half:]))
        return int(slope) if slope > 0 and both > slope / 2 else None

    def steps_left(self, slope: int) -> int:
        """From the end of the latest step on, until a step's peak no longer fits."""
        latest = self._steps[-1]
        room = latest.total - self._outside(latest)
        return max(0, (room - latest.live - self._transient) // slope)
