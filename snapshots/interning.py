"""Call stacks seen once each: PyTorch shares frame dicts and frame lists, so identity is looked at before content."""

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .model import Frame, Stacks

MAX_TEXT = 4096  # characters of a file or function name; C++ templates stay below it
MAX_LINE = 2**31
LONG_STACK = 512  # real stacks have 30 to 130 frames; a longer list is looked at once, however often it is named
_NOT_A_STACK = object()
# how torch.profiler names a Python frame, in the pages of memory_viz.profile_plot
_PROFILER_NAME = re.compile(r"(.+)\(([0-9]{1,9})\): (.+)")


class StackTable:
    """Collects stacks and hands out their index.

    A training loop repeats itself, so the stack that followed the last two before is tried first: comparing two lists
    of the same dicts is much cheaper than hashing one. Then a stack is looked up by the identity of its frame dicts,
    which the table keeps alive for that, and only then by content.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, str], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._of_ids: dict[tuple[int, ...], int] = {(): 0}
        self._frame_of_id: dict[int, int] = {}
        self._long_of_id: dict[int, int] = {}
        self._kept: list[object] = []
        # from here on numbers are one higher than the index handed out, so that 0 is "no stack"
        self._examples: list[object] = [[]]
        self._next_of_two: dict[int, int] = {}
        self._before = self._last = 0

    def column(self, values: Iterable[object]) -> NDArray[np.int32]:
        """The stack index of each of `values`: frame lists as recorded; anything else, or empty, is -1."""
        examples, next_of_two = self._examples, self._next_of_two
        before, last, latest = self._before, self._last, _NOT_A_STACK
        out = []
        for frames in values:
            if frames is not latest:
                context = before << 32 | last
                guess = next_of_two.get(context, 0)
                before = last
                if frames == examples[guess]:
                    last = guess
                else:
                    last = next_of_two[context] = self._number(frames)
                latest = frames
            out.append(last)
        self._before, self._last = before, last
        numbers = np.array(out, np.int32)
        numbers -= 1
        return numbers

    def add(self, frames: object) -> int:
        """The index of one recorded frame list."""
        return self._number(frames) - 1

    def _number(self, frames: object) -> int:
        if type(frames) is tuple:
            frames = list(frames)
        if type(frames) is not list:
            return 0
        if len(frames) > LONG_STACK:
            return self._long(frames)
        ids = tuple(map(id, frames))
        number = self._of_ids.get(ids)
        if number is None:
            number = self._of_ids[ids] = self._new(frames)
        return number

    def _long(self, frames: list[object]) -> int:
        number = self._long_of_id.get(id(frames))
        if number is None:
            number = self._long_of_id[id(frames)] = self._new(frames)
            self._kept.append(frames)
        return number

    def _new(self, frames: list[object]) -> int:
        stack = tuple(self._frame(frame) for frame in frames if isinstance(frame, dict))
        if not stack:
            return 0
        number = self._stacks.setdefault(stack, len(self._stacks)) + 1
        if number == len(self._examples):
            self._examples.append(frames if all(map(_is_flat, frames)) else _NOT_A_STACK)
        return number

    def _frame(self, raw: dict[str, object]) -> int:
        index = self._frame_of_id.get(id(raw))
        if index is None:
            index = self._frames.setdefault(_frame(raw), len(self._frames))
            self._frame_of_id[id(raw)] = index
            self._kept.append(raw)
        return index

    def stacks(self) -> Stacks:
        return Stacks(frames=tuple(Frame(*each) for each in self._frames), stacks=tuple(self._stacks))


def _is_flat(frame: object) -> bool:
    """A dict of texts and numbers: comparing it with anything is cheap, however deep the other is."""
    return type(frame) is dict and all(type(value) in (str, int) for value in frame.values())


def _frame(raw: dict[str, object]) -> tuple[str, int, str]:
    line = raw.get("line")
    # a wrapped -1 (2**64 - 1) occurs in real files
    name, filename = _text(raw.get("name")), _text(raw.get("filename"))
    if filename == "none" and (written := _PROFILER_NAME.fullmatch(name)):
        return written[1], int(written[2]), written[3]
    known = line if type(line) is int and 0 < line < MAX_LINE else 0
    return filename, known, name


def _text(value: object) -> str:
    if type(value) is not str:
        return "??"
    return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
