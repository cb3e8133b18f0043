"""torch.nn.DataParallel's C++ half on one device, where there is nothing to send; on several the run stops.

Rules: torch/csrc/cuda/comm.cpp. Each rank here is a process with one virtual GPU at work, so what DataParallel's
threads would allocate on the others is not simulated.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UnsupportedOperationError
from .patching import patches
from .private import C
from .unsupported import users_line

if TYPE_CHECKING:
    from .session import Session

_Tensors = Sequence[torch.Tensor]


def _only(devices: Sequence[int]) -> torch.device:
    """The one device; a negative index is the host's."""
    if len(devices) != 1:
        file, line = users_line()
        raise UnsupportedOperationError(
            "torch.nn.DataParallel",
            f"the virtual GPU does not run one process on {len(devices)} devices (torch.nn.DataParallel)",
            "Use DistributedDataParallel, one rank per process: oomdoc run --nproc-per-node N.",
            file,
            line,
        )
    return torch.device("cpu") if devices[0] < 0 else torch.device("cuda", devices[0])


def scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Any = None, dim: int = 0, streams: Any = None
) -> tuple[torch.Tensor, ...]:
    """One chunk, which is the tensor: a copy only where it lies elsewhere."""
    return (tensor.to(_only(devices), non_blocking=True),)


def gather(tensors: _Tensors, dim: int, destination: int | None = None) -> torch.Tensor:
    """A concatenation of one: a new tensor on the destination."""
    _only(range(len(tensors)))
    target = _only([tensors[0].get_device() if destination is None else destination])
    return tensors[0].to(target, copy=True)


def broadcast_coalesced(
    tensors: _Tensors, devices: Sequence[int], buffer_size: int = 10485760
) -> list[list[torch.Tensor]]:
    """To the device they are on: the tensors themselves."""
    target = _only(devices)
    return [[tensor.to(target) for tensor in tensors]]


def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return [tensor.to(_only(devices), non_blocking=True)]


def broadcast_out(tensor: torch.Tensor, out: _Tensors) -> list[torch.Tensor]:
    _only(range(len(out)))
    return [out[0].copy_(tensor, non_blocking=True)]


def scatter_out(tensor: torch.Tensor, out: _Tensors, dim: int = 0, streams: Any = None) -> list[torch.Tensor]:
    return broadcast_out(tensor, out)


def gather_out(tensors: _Tensors, out: torch.Tensor, dim: int = 0) -> torch.Tensor:
    _only(range(len(tensors)))
    return out.copy_(tensors[0], non_blocking=True)


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The functions of torch._C that torch.nn.parallel.comm calls, for the time of the block."""
    with patches() as held:
        held.set_all(
            C,
            {
                "_scatter": scatter,
                "_scatter_out": scatter_out,
                "_gather": gather,
                "_gather_out": gather_out,
                "_broadcast": broadcast,
                "_broadcast_out": broadcast_out,
                "_broadcast_coalesced": broadcast_coalesced,
            },
        )
        yield
