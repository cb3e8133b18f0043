"""Interned Python call stacks: one integer per distinct stack, symbolised once at the end.

What a real recording with stacks="python" shows: the frames of the script and of torch, innermost first, without
ours. A code object hashes its whole bytecode, so stacks are told apart by the identities of theirs.
"""

import sys
from types import CodeType, FrameType

from ...snapshots.model import Frame, Stacks
from ..script import is_recorder

_MACHINERY = ("torch/_compile.py", "torch/_ops.py", "torch/utils/_python_dispatch.py", "torch/_dynamo/eval_frame.py")


class StackTable:
    """Grows with distinct stacks only. Not a lock in it: dict operations are atomic under the GIL."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, ...], int] = {}
        self._stacks: list[tuple[int, ...]] = []
        self._codes: dict[int, CodeType] = {}  # by id, and kept: no other code can come to have it
        self._stops: set[int] = set()

    def stop_at(self, code: CodeType) -> None:
        """Frames of `code`, and from there outwards, are the launcher's."""
        self._codes[id(code)] = code
        self._stops.add(id(code))

    def capture(self, skip: int = 1) -> int:
        """The id of the caller's stack, `skip` frames of ours left out."""
        key: list[int] = []
        append = key.append
        stops = self._stops
        innermost = frame = sys._getframe(skip)
        while frame is not None:
            code = id(frame.f_code)
            if code in stops:
                break
            append(code)
            append(frame.f_lasti)
            frame = frame.f_back  # type: ignore[assignment]
        whole = tuple(key)
        found = self._ids.get(whole)
        if found is None:
            self._keep(innermost, len(whole) // 2)
            found = self._ids[whole] = len(self._stacks)
            self._stacks.append(whole)
        return found

    def _keep(self, frame: FrameType, depth: int) -> None:
        for _ in range(depth):
            self._codes[id(frame.f_code)] = frame.f_code
            frame = frame.f_back  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._stacks)

    def freeze(self) -> Stacks:
        """All stacks as plain frames; the index of a stack is its id."""
        frames: list[Frame] = []
        index_of: dict[Frame, int] = {}
        lines: dict[int, dict[int, int]] = {}
        stacks: list[tuple[int, ...]] = []
        for whole in self._stacks:
            chosen: list[int] = []
            for identity, lasti in zip(whole[::2], whole[1::2], strict=True):
                code = self._codes[identity]
                if is_machinery(code.co_filename):
                    continue
                table = lines.get(identity)
                if table is None:
                    table = lines[identity] = _line_table(code)
                frame = Frame(code.co_filename, table.get(lasti, code.co_firstlineno), code.co_name)
                at = index_of.get(frame)
                if at is None:
                    at = index_of[frame] = len(frames)
                    frames.append(frame)
                chosen.append(at)
            stacks.append(tuple(chosen))
        return Stacks(frames=tuple(frames), stacks=tuple(stacks))


def is_machinery(filename: str) -> bool:
    """True for files of oomdoc's recorders and for the parts of torch that only a dispatch mode brings in."""
    return is_recorder(filename) or filename.replace("\\", "/").endswith(_MACHINERY)


def _line_table(code: CodeType) -> dict[int, int]:
    """Instruction offset -> line, for every instruction of the code."""
    table: dict[int, int] = {}
    for start, end, line in code.co_lines():
        for offset in range(start, end, 2):
            table[offset] = line if line is not None else code.co_firstlineno
    return table
