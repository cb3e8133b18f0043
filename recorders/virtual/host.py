"""Virtual host tensors: big float tensors on the CPU whose values are not computed.

Initialising the parameters of a large model on the host would take longer than everything else, and more memory than
the machine has. Float factories from 256k elements on give a meta storage tagged HOST: its device is `cpu`, its
values are never asked for. Integer and small tensors stay real, because scripts compute with them.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from .private import TorchDispatchMode, raw_is_meta

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


def as_real(value: Any) -> Any:
    """Arguments for an operation that has to look at values: zeros for the virtual host tensors among them."""
    if isinstance(value, torch.Tensor):
        return real_zeros(value.shape, value.dtype) if raw_is_meta(value) else value
    if type(value) in (list, tuple):
        return type(value)(as_real(each) for each in value)
    return value


def real_zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that are really there, whatever their size (the system gives the pages when they are touched)."""
    counted = np.zeros(prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(counted).view(dtype).reshape(tuple(shape))


class WorkerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no annotations
    """In a forked worker, which has left the session: what comes from a virtual host tensor is real zeros.

    A worker collates and sends its samples to the parent, and for that they have to exist.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(each, torch.Tensor) and raw_is_meta(each) for each in _flat((*args, *kwargs.values()))):
            return func(*args, **kwargs)
        if args and isinstance(args[0], torch.Tensor) and not raw_is_meta(args[0]) and func._schema.is_mutable:
            return args[0]
        return as_real(func(*as_meta(args), **{key: as_meta(value) for key, value in kwargs.items()}))


def _flat(values: Sequence[Any]) -> list[Any]:
    return [each for value in values for each in (value if type(value) in (list, tuple) else (value,))]
