"""Each distinct stack is read once: its signs, and the lines that a person would name."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...snapshots.model import Frame, Stacks
from ..interface import Location
from .signs import Sign, is_library_file, is_python, is_torch_file, signs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSigns:
    """Signs by stack index. The last entry is that of "no stack", so that index -1 reads as no sign at all."""

    signs: NDArray[np.int64]  # shape (stacks + 1,)

    def of(self, stacks: NDArray[np.int32]) -> NDArray[np.int64]:
        """The signs of each entry of a column of stack indices."""
        return self.signs[stacks]

    def at(self, stack: int) -> int:
        """The signs of one stack; none for -1."""
        return int(self.signs[stack])


def read_stacks(stacks: Stacks) -> StackSigns:
    """The signs of every stack, each read once."""
    by_frame = [signs_of(frame) for frame in stacks.frames]
    signs = np.zeros(len(stacks.stacks) + 1, np.int64)
    whole = _are_whole(stacks, by_frame)
    for index, stack in enumerate(stacks.stacks):
        signs[index] = _combine([by_frame[frame] for frame in stack], whole)
    signs[_moves_a_buffer(stacks, by_frame)] |= Sign.BUFFER
    return StackSigns(signs=signs)


def _moves_a_buffer(stacks: Stacks, by_frame: Sequence[int]) -> list[int]:
    """Module._apply moves its parameters on one line, and its buffers on one further down, in every version of it."""
    line: dict[int, int] = {}
    for index, stack in enumerate(stacks.stacks):
        innermost = next((frame for frame in stack if stacks.frames[frame].name == "_apply"), None)
        if innermost is not None and by_frame[innermost] & Sign.MODULE_MOVE:
            line[index] = stacks.frames[innermost].line
    lines = set(line.values())
    return [index for index, each in line.items() if len(lines) > 1 and each == max(lines)]


def _are_whole(stacks: Stacks, by_frame: Sequence[int]) -> bool:
    """Most stacks reach down to where their thread began, so one that does not was begun by C++."""
    with_python = [stack for stack in stacks.stacks if any(by_frame[frame] & Sign.PYTHON for frame in stack)]
    begun = sum(1 for stack in with_python if any(by_frame[frame] & Sign.ENTRY for frame in stack))
    return 2 * begun > len(with_python)


def _combine(frames: Sequence[int], whole: bool) -> int:
    """Signs of a stack, innermost frame first.

    Order tells a recomputed forward from a backward inside a forward, and the closure that an optimizer's step calls
    (L-BFGS; PyTorch Lightning always) from the step itself, and a cache that makes room from a `generate_with_kv_cache`
    that calls the model. Python that no thread of Python began is called by the autograd engine: a hook, a custom
    function's backward, a recomputation.
    """
    found = 0
    forward_first = closure = False
    for signs in frames:
        if signs & Sign.ENGINE and not found & Sign.ENGINE:
            forward_first = bool(found & Sign.FORWARD)
        if signs & Sign.OPTIMIZER and not found & Sign.OPTIMIZER:
            closure = bool(found & (Sign.FORWARD | Sign.ENGINE))
        found |= signs & ~Sign.KV_CACHE if found & Sign.FORWARD else signs
    if whole and found & Sign.PYTHON and not found & (Sign.ENTRY | Sign.ENGINE):
        forward_first = bool(found & Sign.FORWARD)
        found |= Sign.ENGINE
    if found & Sign.ENGINE:
        if forward_first:
            found |= Sign.RECOMPUTE
        else:
            found &= ~Sign.RECOMPUTE
    if closure:
        found &= ~Sign.OPTIMIZER
    return found & ~Sign.LIBRARY


def innermost_lines(stacks: Stacks) -> NDArray[np.int64]:
    """For each stack the innermost Python frame outside torch, as its index in `stacks.frames`; -1 = none."""
    outside = [is_python(frame) and not is_torch_file(frame.filename) for frame in stacks.frames]
    found = [next((frame for frame in stack if outside[frame]), -1) for stack in stacks.stacks]
    return np.array(found, np.int64)


def places(stacks: Stacks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each stack a number that those with the same Python frames share; -1 without any. Entry -1 is "no stack".

    And for each number that of the line that called it, -1 at the outermost: a number here may be no stack's own.
    """
    python = [is_python(frame) for frame in stacks.frames]
    numbers: dict[tuple[int, int], int] = {}
    found = np.full(len(stacks.stacks) + 1, -1, np.int64)
    for index, stack in enumerate(stacks.stacks):
        at = -1
        for frame in reversed(stack):
            if python[frame]:
                at = numbers.setdefault((at, frame), len(numbers))
        found[index] = at
    return found, np.array([caller for caller, _ in numbers], np.int64)


def step_callers(stacks: Stacks) -> NDArray[np.int64]:
    """For each stack the line that called an optimizer's step or zero_grad, as its frame's index; -1 = none."""
    stepping = [bool(signs_of(frame) & (Sign.OPTIMIZER | Sign.ZERO_GRAD)) for frame in stacks.frames]
    outside = [is_python(frame) and not is_torch_file(frame.filename) for frame in stacks.frames]
    found = np.full(len(stacks.stacks) + 1, -1, np.int64)
    for index, stack in enumerate(stacks.stacks):
        steps = [at for at, frame in enumerate(stack) if stepping[frame]]
        if steps:
            found[index] = next((frame for frame in stack[steps[-1] + 1 :] if outside[frame]), -1)
    return found


def optimizer_names(stacks: Stacks) -> set[str]:
    """The files of optimizers whose step is on a stack, e.g. adam, without their endings, in lower case."""
    stepping = (frame.filename for frame in stacks.frames if signs_of(frame) & Sign.OPTIMIZER)
    return {filename.replace("\\", "/").rpartition("/")[2].removesuffix(".py").lower() for filename in stepping}


def user_location(frames: Sequence[Frame]) -> Location | None:
    """The innermost line of the user's own code; None where the stack has none."""
    for frame in frames:
        if is_python(frame) and not is_library_file(frame.filename):
            return Location(frame.filename, frame.line, frame.name)
    return None


def outermost_user_location(frames: Sequence[Frame]) -> Location | None:
    """The line of the user's script: the outermost frame of their code that is not the module's top level alone."""
    found = None
    for frame in frames:
        if is_python(frame) and not is_library_file(frame.filename):
            if frame.name == "<module>":  # what lies further out started the script
                return found or Location(frame.filename, frame.line, frame.name)
            found = Location(frame.filename, frame.line, frame.name)
    return found


def library_location(frames: Sequence[Frame]) -> Location | None:
    """The innermost line outside torch: a model's own code, also where it is installed as a package."""
    for frame in frames:
        if is_python(frame) and not is_torch_file(frame.filename):
            return Location(frame.filename, frame.line, frame.name)
    return None
