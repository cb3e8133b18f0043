"""What the planner has to know of the job, as plain values: the `facts` of a Recording.

parameters   count, bytes, trainable_count, trainable_bytes, bytes_by_dtype, count_by_dtype (shards as they are)
optimizers   one per optimizer: class, foreach, fused, parameters (tensors), state_bytes
blocks       repeated parts of the model: class, count, parameter_bytes (of all), paths
inputs       tensors that came from the host: shape, dtype, count
autocast     dtype of torch.autocast("cuda") in the last forward, or null
dataloaders  class, batch_size, num_workers, pin_memory, dataset_length
steps        optimizer steps done; backwards_per_step: outermost backward passes in the last complete step
"""

import gc
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from .hooks import Hooks, plain_tensors, tensors_in


def job_facts(hooks: Hooks, inputs: Mapping[tuple[tuple[int, ...], str], int]) -> dict[str, object]:
    """Plain values only. `inputs`: (shape, dtype) -> how many transfers."""
    roots = [module for reference in hooks.roots if (module := reference()) is not None]
    parameters = {id(p): p for root in roots for p in root.parameters()}
    optimizers = [optimizer for reference in hooks.optimizers if (optimizer := reference()) is not None]
    return {
        "parameters": _parameters(parameters.values()),
        "optimizers": [_optimizer(each) for each in optimizers],
        "blocks": [block for root in roots for block in _blocks(root)],
        "inputs": [{"shape": list(shape), "dtype": dtype, "count": n} for (shape, dtype), n in inputs.items()],
        "autocast": hooks.autocast,
        "dataloaders": [_loader(each) for each in gc.get_objects() if issubclass(type(each), DataLoader)],
        "steps": hooks.completed,
        "backwards_per_step": hooks.backwards_per_step,
    }


def _bytes(tensor: torch.Tensor) -> int:
    return sum(inner.numel() * inner.element_size() for inner in plain_tensors(tensor))


def _parameters(parameters: Iterable[torch.nn.Parameter]) -> dict[str, object]:
    by_dtype: dict[str, int] = {}
    count_by_dtype: dict[str, int] = {}
    count = nbytes = trainable_count = trainable_bytes = 0
    for parameter in parameters:
        size = sum(inner.numel() for inner in plain_tensors(parameter))
        held = _bytes(parameter)
        count += size
        nbytes += held
        if parameter.requires_grad:
            trainable_count += size
            trainable_bytes += held
        name = dtype_name(parameter.dtype)
        by_dtype[name] = by_dtype.get(name, 0) + held
        count_by_dtype[name] = count_by_dtype.get(name, 0) + size
    return {
        "count": count,
        "bytes": nbytes,
        "trainable_count": trainable_count,
        "trainable_bytes": trainable_bytes,
        "bytes_by_dtype": by_dtype,
        "count_by_dtype": count_by_dtype,
    }


def _optimizer(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    parameters = {id(p) for g in optimizer.param_groups for p in g["params"]}
    state = [tensor for tensor in tensors_in(optimizer.state) if id(tensor) not in parameters]
    return {
        "class": type(optimizer).__name__,
        "foreach": group.get("foreach"),
        "fused": group.get("fused"),
        "parameters": len(parameters),
        "state_bytes": sum(_bytes(tensor) for tensor in state if tensor.is_cuda),
    }


def _blocks(root: torch.nn.Module) -> list[dict[str, object]]:
    """Children of one list or sequence that share a class and own parameters: the layers of a model."""
    found: list[dict[str, object]] = []
    for path, parent in root.named_modules():
        by_class: dict[str, list[tuple[str, torch.nn.Module]]] = {}
        if isinstance(parent, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)):
            for name, child in parent.named_children():
                by_class.setdefault(type(child).__name__, []).append((f"{path}.{name}" if path else name, child))
        for name, children in by_class.items():
            nbytes = sum(_bytes(p) for _, child in children for p in child.parameters())
            if len(children) > 1 and nbytes:
                paths = [child_path for child_path, _ in children]
                found.append({"class": name, "count": len(children), "parameter_bytes": nbytes, "paths": paths})
    return found


def _loader(loader: Any) -> dict[str, object]:
    try:
        length: int | None = len(loader.dataset)
    except (TypeError, NotImplementedError):
        length = None
    return {
        "class": type(loader).__name__,
        "batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        "pin_memory": bool(loader.pin_memory),
        "dataset_length": length,
    }


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
