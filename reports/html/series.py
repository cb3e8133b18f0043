"""What the page's charts of one device are drawn from: memory over time, the blocks behind it, the allocator's map."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...diagnosers.attribution.facts import gather
from ...diagnosers.attribution.signs import is_library_file, is_python
from ...diagnosers.attribution.steps import mark_at, phase_name
from ...diagnosers.attribution.whole_trace import ORDER, History, history
from ...diagnosers.call_sites import Lines
from ...diagnosers.interface import DeviceProfile, Location
from ...snapshots.model import Frame, Stacks
from ...snapshots.timeline import live_bytes, reserved_bytes
from ..sampling import moments, seen, stacked
from ..text import CONTROLS, short_path
from .packing import Packer
from .segments import allocator_map

BLOCKS_PER_STACK = 10  # of so many blocks one may have a stack of its own; usually hundreds share one
_LEFT_OUT = -2  # the stack of an origin for which there was no more room; -1 = none recorded
_USER, _LIBRARY, _NATIVE = 0, 1, 2


class Names:
    """Strings and places that several devices share, each once."""

    def __init__(self) -> None:
        self.frames: dict[Frame, int] = {}
        self.modules: dict[str, int] = {}

    def frame(self, frame: Frame) -> int:
        return self.frames.setdefault(frame, len(self.frames))

    def location(self, location: Location | None) -> int:
        return -1 if location is None else self.frame(Frame(location.file, location.line, location.function))

    def module(self, module: str | None) -> int:
        return -1 if not module else self.modules.setdefault(module, len(self.modules))

    def content(self) -> dict[str, Any]:
        return {"frames": list(map(_frame, self.frames)), "modules": [_shown(module) for module in self.modules]}


def _frame(frame: Frame) -> tuple[str, int, str, int]:
    kind = _NATIVE if not is_python(frame) else _LIBRARY if is_library_file(frame.filename) else _USER
    return _shown(short_path(frame.filename)), frame.line, _shown(frame.name), kind


def _shown(text: str) -> str:
    """Without control characters and those that turn a line around."""
    return text.translate(CONTROLS).replace("\n", " ")


def device(profile: DeviceProfile, packer: Packer, names: Names, title: str, most_blocks: int) -> dict[str, Any]:
    """One entry of `devices` in the page's data, with at most so many blocks one by one."""
    live, reserved = live_bytes(profile.device_snapshot), reserved_bytes(profile.device_snapshot)
    event = profile.oom.event if profile.oom else profile.peak.event
    keep = [event, profile.peak.event, int(reserved.argmax()) - 1, *(step.event for step in profile.steps)]
    at = moments(live, reserved, keep)
    past = history(profile)
    lives = past.lives
    drawn = stacked(at, lives.birth, lives.death, lives.requested, past.category, len(ORDER))
    step, phase, phases = _when(profile, at)
    return {
        "title": title,
        "capacity": profile.capacity_bytes,
        "outside": profile.outside_bytes,
        "events": len(live) - 1,
        "moment": int(np.searchsorted(at, event)),
        "failed": profile.oom is not None,
        "requested": profile.oom.requested_bytes if profile.oom else None,
        "at": packer.column(at, "i4"),
        "reserved": packer.column(reserved[at + 1], "f8"),
        "categories": {
            ORDER[code].value: packer.column(drawn[code], "f8") for code in range(len(ORDER)) if drawn[code].any()
        },
        "step": packer.column(step, "i4"),
        "phase": packer.column(phase, "u1"),
        "phases": phases,
        "blocks": _blocks(profile, past, at, packer, names, most_blocks),
        "map": allocator_map(profile, event, packer, most_blocks // 4),
    }


def _when(profile: DeviceProfile, at: NDArray[np.int64]) -> tuple[list[int], list[int], list[str]]:
    """Step (0 = not known) and phase of each moment, and the phases' names, of which the first is "not known"."""
    phases: dict[str, int] = {"": 0}
    marks = profile.recording.marks if profile.recording else ()
    facts = gather(profile.snapshot, profile.device_snapshot)
    ends = np.array([step.event for step in profile.steps], np.int64)
    first = profile.steps[0].step if profile.steps else 0
    steps, found = [], []
    for event in at.tolist():
        mark = mark_at(marks, event) if marks else None
        name = mark.phase if mark else phase_name(facts, event) if not marks else None
        counted = mark.step if mark else first + int(np.searchsorted(ends, event)) if len(ends) and event >= 0 else 0
        steps.append(counted)
        found.append(phases.setdefault(name or "", len(phases)))
    return steps, found, list(phases)


@dataclass(frozen=True, slots=True)
class _Origins:
    """Distinct (category, recorded or not, module, stack) of the blocks shown."""

    index: NDArray[np.intp]  # by block
    rows: NDArray[np.int64]  # shape (origins, 4)


def _blocks(
    profile: DeviceProfile, past: History, at: NDArray[np.int64], packer: Packer, names: Names, most: int
) -> dict[str, Any]:
    """The blocks that any moment drawn finds alive; of too many the smallest only as sums by moment."""
    lives = past.lives
    since, until = seen(at, lives.birth, lives.death)
    rows = np.flatnonzero(since < until)
    rest: NDArray[np.intp] = rows[:0]
    if len(rows) > most:
        order = rows[np.argsort(-lives.requested[rows], kind="stable")]
        rows, rest = np.sort(order[:most]), order[most:]
    origins = _origins(past, rows)
    left = stacked(
        at, np.tile(lives.birth[rest], 2), np.tile(lives.death[rest], 2),
        np.concatenate([lives.requested[rest], np.ones(len(rest), np.int64)]),
        np.repeat([0, 1], len(rest)), 2,
    )  # fmt: skip
    lines = Lines(profile.snapshot)
    stacks: dict[int, int] = {}
    listed: list[list[int]] = []
    table = []
    for category, exact, module, stack in origins.rows.tolist():
        if stack >= 0 and stack not in stacks and len(listed) < most // BLOCKS_PER_STACK:
            stacks[stack] = len(listed)
            listed.append(_stack(profile.snapshot.stacks, stack, names))
        place = names.location(lines.of(stack))
        named = names.module(past.modules[module] if 0 <= module < len(past.modules) else None)
        shown = stacks.get(stack, _LEFT_OUT) if stack >= 0 else -1
        table.append([ORDER[category].value, exact, named, place, shown])
    return {
        "birth": packer.column(lives.birth[rows], "i4"),
        "death": packer.column(lives.death[rows], "i4"),
        "size": packer.column(lives.requested[rows], "f8"),
        "origin": packer.column(origins.index, "i4"),
        "origins": table,
        "stacks": listed,
        "rest_bytes": packer.column(left[0], "f8") if len(rest) else None,
        "rest_count": packer.column(left[1], "i4") if len(rest) else None,
    }


def _origins(past: History, rows: NDArray[np.intp]) -> _Origins:
    columns = (past.category[rows], past.exact[rows], past.module[rows], past.lives.alloc_stack[rows])
    table = np.stack([column.astype(np.int64) for column in columns], axis=1)
    found, index = np.unique(table, axis=0, return_inverse=True)
    return _Origins(index.reshape(-1), found)


def _stack(stacks: Stacks, index: int, names: Names) -> list[int]:
    """Outermost first, as a flame graph stands; without what recorded it."""
    return [names.frame(frame) for frame in reversed(stacks.of(index))]
