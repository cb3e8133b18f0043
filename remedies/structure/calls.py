"""From a Python stack to the module calls on it: who called which module, at which line.

`nn.Module.__call__` leaves its own frames between the line that calls a module and the module's forward; what lies
between two such places identifies the call. Which of several modules a line calls (the layers of a loop, the children
of a Sequential) no frame tells: `tree` finds that out from the order of the rows.
"""

import linecache
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath

from ...snapshots.model import Frame, Stacks
from .sources import located

_MACHINERY = {"_call_impl", "_wrapped_call_impl", "inner", "__call__", "_slow_forward", "_fast_forward"}
_MODULE_FILE = "torch/nn/modules/module.py"
CONTAINER_FILE = "torch/nn/modules/container.py"
_CLASS = re.compile(r"class\s+(\w+)")
# One class stands for all of a file of torch/nn/modules where the file cannot be read: they have one kind of operation.
_CLASS_OF_FILE = {
    "linear": "Linear", "conv": "Conv2d", "normalization": "LayerNorm", "batchnorm": "BatchNorm2d",
    "instancenorm": "InstanceNorm2d", "dropout": "Dropout", "sparse": "Embedding", "pooling": "MaxPool2d",
    "container": "Sequential", "loss": "CrossEntropyLoss", "rnn": "RNN", "flatten": "Flatten", "upsampling": "Upsample",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One module call on a stack: `site` are the frames from the caller's forward to the call, outermost first."""

    site: tuple[Frame, ...]
    filename: str  # of the forward that was called
    function: str

    @property
    def is_container(self) -> bool:
        """It calls its children at one line, one after the other."""
        return self.filename.replace("\\", "/").endswith(CONTAINER_FILE)


@dataclass(frozen=True, slots=True)
class Chain:
    """The calls on a stack, outermost first, and for each the line in its forward that the stack has come to."""

    calls: tuple[Call, ...]
    lines: tuple[int, ...]


def chain_of(stacks: Stacks, stack: int) -> Chain:
    """Empty where no module's forward is on the stack."""
    frames = [frame for frame in reversed(stacks.of(stack)) if frame.filename.endswith(".py") and frame.line > 0]
    calls: list[Call] = []
    lines: list[int] = []
    site: list[Frame] = []
    index = 0
    while index < len(frames):
        if not _is_machinery(frames[index]):
            site.append(frames[index])
            index += 1
            continue
        while index < len(frames) and _is_machinery(frames[index]):
            index += 1
        inside = index
        while inside < len(frames) and not _is_machinery(frames[inside]):
            inside += 1
        entered = frames[index:inside]
        if not entered:
            break
        callee = next((frame for frame in entered if frame.name == "forward"), entered[0])
        calls.append(Call(tuple(site), callee.filename, callee.name))
        lines.append(callee.line)
        site = []
    return Chain(tuple(calls), tuple(lines))


def _is_machinery(frame: Frame) -> bool:
    return frame.name in _MACHINERY and frame.filename.replace("\\", "/").endswith(_MODULE_FILE)


def class_at(filename: str, line: int, function: str) -> str | None:
    """The class whose forward has this line: from the source where it can be read, else by torch's file names."""
    here = located(filename, line, function)
    found = _class_in_source(here, line) if here else None
    if found is not None:
        return found
    path = PurePath(filename.replace("\\", "/"))
    return _CLASS_OF_FILE.get(path.stem) if path.parent.as_posix().endswith("torch/nn/modules") else None


@lru_cache(maxsize=4096)
def _class_in_source(filename: str, line: int) -> str | None:
    text = linecache.getlines(filename)
    if line > len(text):
        return None
    for above in reversed(text[: line - 1]):
        match = _CLASS.match(above)
        if match:
            return match.group(1)
    return None
