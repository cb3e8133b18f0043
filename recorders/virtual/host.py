"""Virtual host tensors: big float tensors on the CPU whose values are not computed.

Initialising the parameters of a large model on the host would take longer than everything else, and more memory than
the machine has. Float factories from 256k elements on give a meta storage tagged HOST: its device is `cpu`, its
values are never asked for. Integer and small tensors stay real, because scripts compute with them.
"""

import os
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .private import raw_is_meta

BIG_ELEMENTS = 256 * 1024


def is_big(elements: int, dtype: torch.dtype | None) -> bool:
    """Whether a host tensor of this size is virtual."""
    return elements >= BIG_ELEMENTS and (dtype or torch.get_default_dtype()).is_floating_point


def wants_virtual(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a factory call (its first argument is a shape, or a tensor to be like) makes a virtual host tensor."""
    shape = args[0] if args else kwargs.get("size")
    if isinstance(shape, torch.Tensor):
        return raw_is_meta(shape) and is_big(shape.numel(), kwargs.get("dtype") or shape.dtype)
    if not isinstance(shape, (list, tuple)) or not shape or not all(isinstance(size, int) for size in shape):
        return False
    device, layout = kwargs.get("device"), kwargs.get("layout")
    on_host = device is None or device.type == "cpu"
    return on_host and layout in (None, torch.strided) and is_big(prod(shape), kwargs.get("dtype"))


def as_meta(value: Any) -> Any:
    """Arguments of an operation on virtual host tensors, the real ones replaced by meta tensors of their shape."""
    if isinstance(value, torch.Tensor):
        if raw_is_meta(value):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if type(value) in (list, tuple):
        return type(value)(as_meta(each) for each in value)
    return value


def made_real(value: Any) -> Any:
    """In a DataLoader's worker: small virtual results as real zeros, because they have to travel to the parent."""
    if isinstance(value, torch.Tensor):
        if raw_is_meta(value) and value.numel() < BIG_ELEMENTS:
            return torch.zeros(value.shape, dtype=value.dtype)
        return value
    if type(value) in (list, tuple):
        return type(value)(made_real(each) for each in value)
    return value


class Forks:
    """Tells a forked worker from the process that the session was made in."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def in_worker(self) -> bool:
        return os.getpid() != self.pid
