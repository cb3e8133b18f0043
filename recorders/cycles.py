"""Tensors on the GPU that nothing reaches any more, and that only Python's cycle collector would free.

A module and a hook that captured it, an exception and the frame that caught it: each keeps the other. The collector
runs by the number of objects made, not by the memory of a GPU, and CUDA's running out of memory does not start it.
"""

import gc
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from types import FunctionType
from typing import Any

import torch

MOST = 3  # owners that are named


def unreachable() -> dict[str, Any]:
    """`{"addresses": [...], "owners": ["18 of Probe", "closure Probe.__init__.<locals>.<lambda>()"]}`.

    Nothing is freed, but finalizers of what is found do run, as in any collection.
    """
    before, kept = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(before)
    found = gc.garbage[kept:]
    del gc.garbage[kept:]
    lost = [each for each in found if issubclass(type(each), torch.Tensor)]
    lost += [each.grad for each in lost if each.is_leaf and each.grad is not None]
    addresses = {
        tensor.untyped_storage().data_ptr() for tensor in lost if tensor.is_cuda and tensor.layout is torch.strided
    }
    addresses.discard(0)
    return {"addresses": sorted(addresses), "owners": _owners(found) if addresses else []}


def _captured(function: FunctionType) -> Iterable[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents


def _owners(found: Iterable[Any]) -> list[str]:
    modules = [each for each in found if issubclass(type(each), torch.nn.Module)]
    parts = {id(part) for module in modules for part in module.children()}
    names = Counter(type(each).__qualname__ for each in modules if id(each) not in parts)
    mine = {id(module) for module in modules}
    functions = (each for each in found if type(each) is FunctionType)
    closures = dict.fromkeys(
        f"closure {each.__qualname__}()" for each in functions if any(id(held) in mine for held in _captured(each))
    )
    return [f"{number} of {name}" for name, number in names.most_common(MOST)] + list(closures)[:MOST]
