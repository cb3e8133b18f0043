"""What the planner wants to know of a job, collected from its live objects: the `facts` of a Recording.

Plain values only; read back by `remedies.job_facts`. Call it before a dump, while the models are alive.
"""

import gc
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..remedies.runtime.modules import of_classes, repeated_blocks, user_class
from .batches import length


def describe(
    roots: Iterable[torch.nn.Module],
    optimizers: Iterable[torch.optim.Optimizer],
    loader: Mapping[str, int] | None = None,
) -> dict[str, object]:
    """Facts of the models (outermost modules) and optimizers that a script used, and of the `loader` that fed it.

    Where no batch was drawn yet, the DataLoader is looked for among what exists. Module paths are those of
    `named_modules()`, the class name for a root. Bytes are of this rank (a DTensor counts with its shard).
    """
    roots = list(roots)
    modules: dict[str, str] = {}
    owned: defaultdict[str, int] = defaultdict(int)
    used: defaultdict[str, int] = defaultdict(int)  # a shared parameter counts in every module that uses it
    blocks: list[str] = []
    parameters: dict[int, torch.Tensor] = {}
    for root in roots:
        paths = {id(module): path or type(root).__name__ for path, module in root.named_modules()}
        modules.update({path: user_class(module) for path, module in _named(root)})
        blocks += [paths[id(block)] for block in of_classes(root, repeated_blocks(root)) if id(block) in paths]
        for path, module in _named(root):
            for parameter in module.parameters(recurse=False):
                used[path] += _bytes(parameter)
                if id(parameter) not in parameters:
                    parameters[id(parameter)] = parameter
                    owned[path] += _bytes(parameter)
    return {
        "modules": modules,
        "blocks": blocks,
        "parameters": {**_parameters(list(parameters.values())), "gathered_dtype": _gathered_dtype(roots)},
        "parameter_bytes_of_module": dict(owned),
        "parameter_bytes_used_by_module": dict(used),
        "optimizers": [_optimizer(optimizer) for optimizer in optimizers],
        "batch_statistics": any(
            isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for root in roots for module in root.modules()
        ),
        "training_mode": any(root.training for root in roots) if roots else None,
        "loader": dict(loader) if loader else _loader(),
    }


def _named(root: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return [(path or type(root).__name__, module) for path, module in root.named_modules()]


def _bytes(tensor: Any) -> int:
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.numel() * local.element_size())


def _parameters(parameters: list[torch.Tensor]) -> dict[str, object]:
    by_dtype: defaultdict[str, int] = defaultdict(int)
    for parameter in parameters:
        by_dtype[str(parameter.dtype).removeprefix("torch.")] += _bytes(parameter)
    return {
        "count": sum(p.numel() for p in parameters),
        "tensors": len(parameters),
        "bytes": sum(map(_bytes, parameters)),
        "trainable_bytes": sum(_bytes(p) for p in parameters if p.requires_grad),
        "largest_bytes": max(map(_bytes, parameters), default=0),
        "largest_shape": list(max(parameters, key=_bytes).shape) if parameters else [],
        "bytes_of_dtype": dict(by_dtype),
        "sharded": any(hasattr(p, "_local_tensor") for p in parameters),
    }


def _gathered_dtype(roots: Iterable[torch.nn.Module]) -> str | None:
    """The type in which FSDP2 gathers parameters for the forward, where its policy names one."""
    for root in roots:
        for module in root.modules():
            state_of: Any = getattr(module, "_get_fsdp_state", None)
            try:
                state = state_of() if callable(state_of) else None
            except AssertionError:  # its class was made by fully_shard, itself it was not
                continue
            dtype = getattr(getattr(state, "_mp_policy", None), "param_dtype", None)
            if dtype is not None:
                return str(dtype).removeprefix("torch.")
    return None


def _optimizer(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = [
        value
        for parameter in parameters
        for value in optimizer.state.get(parameter, {}).values()
        if isinstance(value, torch.Tensor) and value.ndim
    ]
    first = optimizer.param_groups[0]
    return {
        "class": type(optimizer).__name__,
        "foreach": first.get("foreach"),
        "fused": first.get("fused"),
        "parameter_bytes": sum(map(_bytes, parameters)),
        "state_bytes": sum(map(_bytes, state)),
    }


def _loader() -> dict[str, object] | None:
    """The DataLoader that is to feed training: of those alive the one over the most samples."""
    loaders = [each for each in gc.get_objects() if issubclass(type(each), DataLoader)]
    found = [(length(each.dataset), each.batch_size) for each in loaders if isinstance(each.batch_size, int)]
    if not found:
        return None
    samples, batch_size = max(found)
    return {"batch_size": batch_size, "samples": samples}
