"""What a rank keeps in the host's memory at the end: what offloading moves there has to fit as well.

Bytes of tensors, counted once per storage; a host tensor whose values are virtual counts with what it would take.
"""

from collections.abc import Iterable, Sequence

import torch

from ..hooks import plain_tensors, tensors_in
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
        for each in (tensor, tensor.grad if tensor.is_leaf else None)
        if each is not None
    )
    return {
        "parameter": _bytes(own, seen),
        "optimizer_state": _bytes((each for optimizer in optimizers for each in tensors_in(optimizer.state)), seen),
        "pinned": sum(storage.nbytes() for storage in pinned_storages()),
    }


def _bytes(tensors: Iterable[torch.Tensor], seen: set[int]) -> int:
    total = 0
    for local in (plain for tensor in tensors for plain in plain_tensors(tensor)):
        if local.layout is not torch.strided or device_of(local).type != "cpu":
            continue
        storage = raw_storage(local)
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total
