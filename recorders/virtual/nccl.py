"""What NCCL takes of the card beside PyTorch's allocator, once a process group works on it: a part of `outside`.

Measured (stas00/ml-engineering training/performance/README.md): two A100 under torch 2.1.1 go from 0.55 to 2.00 GiB at
the first barrier, and back to 1.28 GiB when the group is destroyed. So the library's kernels take 0.73 GiB of a
process, and a communicator's channels 0.72 GiB. Other cards, more ranks and newer releases of NCCL, which connect
later, take other amounts: everywhere else these are estimates, and the report says so.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from .storages import is_virtual

KERNELS_BYTES = 748 << 20
COMMUNICATOR_BYTES = 737 << 20
NOTE = "NCCL is taken to hold 0.73 GiB, and 0.72 GiB for each group that communicates (measured on two A100 only)"


def connects(collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective of a group: its communicator is made at the first call with tensors on the GPU."""

    @wraps(collective)
    def connected(group: Any, *args: Any, **kwargs: Any) -> Any:
        if not group.connected and group.size() > 1:
            index = _device_of(args)
            if index is not None:
                group.connected = True
                _take(index)
        return collective(group, *args, **kwargs)

    return connected


def _device_of(args: Any) -> int | None:
    """The index of the first virtual tensor among nested arguments."""
    for each in args:
        if isinstance(each, torch.Tensor) and is_virtual(each):
            return each.get_device()
        if isinstance(each, (list, tuple)):
            found = _device_of(each)
            if found is not None:
                return found
    return None


def _take(index: int) -> None:
    from .session import active  # which imports the groups

    session = active()
    if session is None:
        return
    first = not session.device.taken_outside[index]
    session.device.take_outside(COMMUNICATOR_BYTES + (KERNELS_BYTES if first else 0), index)
    session.notes[NOTE] = session.notes.get(NOTE, 0) + 1
