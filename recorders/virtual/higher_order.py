"""Operators that take functions: their plain implementation, whose operations the tracker then sees.

Random operations of DTensor come wrapped in one that moves the GPU's generator; the virtual GPU draws no numbers, so
the operation inside is run alone.
"""

from typing import TYPE_CHECKING, Any

import torch

from . import flex
from .private import EXPLICIT_KEYS
from .unsupported import unsupported

if TYPE_CHECKING:
    from .tracker import Tracker

_OPERATION_AT = {"run_dtensor_rng_op": 2, "run_with_rng_state": 1}  # where the operation stands among the arguments


def run_eagerly(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tracker: "Tracker") -> Any:
    """What `func(*args, **kwargs)` returns, by its eager implementation, but for what scripts compile."""
    name = func.name()
    if name in _OPERATION_AT:
        at = _OPERATION_AT[name]
        return args[at](*args[at + 1 :], **kwargs)
    if name == "run_and_save_rng_state":
        return torch.cuda.get_rng_state(), args[0](*args[1:], **kwargs)
    if name == "flex_attention":
        if tracker.fusion is not None:
            return flex.fused(args)
        if tracker.note is not None:
            tracker.note(flex.EAGER)
    kernel = func.py_kernels.get(EXPLICIT_KEYS[0])
    if kernel is None:
        raise unsupported(f"higher_order::{name}", "it has no eager implementation")
    return kernel(*args, **kwargs)
