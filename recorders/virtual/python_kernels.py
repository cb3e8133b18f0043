"""Operators of libraries whose CUDA kernel is Python code, as `torch.library` lets one write them: that code runs.

What it allocates, keeps and gives back meanwhile are torch's own operations, which the tracker sees; what it launches
(Triton, a native library of known_extensions.py) launches nothing. So nobody has to tell what such an operator takes.
Code that needs what is not here, such as a compiled module, leaves the operator to its fake kernel.
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from .operands import Operands, look, placement
from .private import run_cuda_kernel
from .storages import Kind

if TYPE_CHECKING:
    from .tracker import Tracker


def run_python_kernel(tracker: "Tracker", func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator's results; NotImplemented where its code cannot run, or not on virtual tensors."""
    found = look(args, kwargs, tracker.device.count > 1, Operands())
    kind, _ = placement(found, kwargs.get("device"), tracker.device.current)
    if kind is not Kind.CUDA:
        return NotImplemented
    fusion = tracker.fusion
    if fusion is not None:
        fusion.realize_operands((*args, *kwargs.values()))
    try:
        with nullcontext() if fusion is None else fusion.opaque():
            result = tracker.reentered(run_cuda_kernel, (func, *args), kwargs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a stranger's code, on a machine that it was not written for
        if tracker.note is not None:
            tracker.note(f"{func.name()} could not run its own code ({type(error).__name__}): only its outputs count")
        tracker.handlers.pop(func, None)
        return NotImplemented
    tracker.operations += 1
    return result
