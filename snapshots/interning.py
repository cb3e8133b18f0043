"""Call stacks seen once each: PyTorch shares frame dicts and frame lists, so identity is looked at before content."""

import numpy as np
from numpy.typing import NDArray

from .model import Frame, Stacks

MAX_TEXT = 4096  # characters of a file or function name; C++ templates stay below it
MAX_LINE = 2**31


class StackTable:
    """Collects stacks and hands out their index.

    The indices by identity hold only while the frame lists live: call `forget` before they are released.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, str], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._frame_of_id: dict[int, int] = {}
        self._stack_of_ids: dict[tuple[int, ...], int] = {}

    def column(self, values: list[object]) -> NDArray[np.int32]:
        """The stack index of each of `values` (frame lists as recorded; anything else, or empty, is -1)."""
        ids = list(map(id, values))
        index_of = {key: self.add(value) for key, value in dict(zip(ids, values, strict=True)).items()}
        return np.fromiter(map(index_of.__getitem__, ids), np.int32, len(ids))

    def add(self, frames: object) -> int:
        if not frames or type(frames) not in (list, tuple):
            return -1
        ids = tuple(map(id, frames))  # type: ignore[call-overload]  # the line above leaves list and tuple
        index = self._stack_of_ids.get(ids)
        if index is None:
            stack = tuple(self._frame(frame) for frame in frames)  # type: ignore[attr-defined]  # as above
            index = self._stacks.setdefault(stack, len(self._stacks))
            self._stack_of_ids[ids] = index
        return index

    def _frame(self, raw: object) -> int:
        index = self._frame_of_id.get(id(raw))
        if index is None:
            index = self._frames.setdefault(_frame(raw), len(self._frames))
            self._frame_of_id[id(raw)] = index
        return index

    def forget(self) -> None:
        self._frame_of_id.clear()
        self._stack_of_ids.clear()

    def stacks(self) -> Stacks:
        return Stacks(frames=tuple(Frame(*each) for each in self._frames), stacks=tuple(self._stacks))


def _frame(raw: object) -> tuple[str, int, str]:
    fields = raw if isinstance(raw, dict) else {}
    line = fields.get("line")
    # a wrapped -1 (2**64 - 1) occurs in real files
    known = line if type(line) is int and 0 < line < MAX_LINE else 0
    return _text(fields.get("filename")), known, _text(fields.get("name"))


def _text(value: object) -> str:
    if type(value) is not str:
        return "??"
    return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
