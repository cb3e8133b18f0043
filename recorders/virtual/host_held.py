"""What a rank keeps in the host's memory at the end: what offloading moves there has to fit as well.

Bytes of tensors, counted once per storage; a host tensor whose values are virtual counts with what it would take.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .hostside import pinned_storages
from .private import raw_storage
from .storages import device_of


def held_on_host(modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, int]:
    """`parameter` (gradients and buffers too), `optimizer_state`, and `pinned`, which may be part of both."""
    seen: set[int] = set()
    own = (
        each
        for module in modules
        for tensor in (*module.parameters(), *module.buffers())
        for each in (tensor, tensor.grad)
    )
    return {
        "parameter": _bytes(own, seen),
        "optimizer_state": _bytes(
            (each for optimizer in optimizers for state in optimizer.state.values() for each in _values(state)), seen
        ),
        "pinned": sum(storage.nbytes() for storage in pinned_storages()),
    }


def _values(state: Any) -> Iterable[Any]:
    return state.values() if isinstance(state, dict) else ()


def _bytes(tensors: Iterable[Any], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        local: Any = getattr(tensor, "_local_tensor", tensor)
        if not isinstance(local, torch.Tensor) or local.layout is not torch.strided or device_of(local).type != "cpu":
            continue
        storage = raw_storage(local)
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total
