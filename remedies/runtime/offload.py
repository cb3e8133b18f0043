"""cpu-offload at run time: optimizer state in host memory, streamed through the device one parameter at a time;
activations that autograd saves in host memory until backward asks for them."""

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from .application import Application
from .session import Session, refuse_closure

MIN_BYTES = 1 << 20  # smaller activations stay: one transfer costs about as much as 100 KB of PCIe traffic


class CpuOffload(Application):
    """`what: [optimizer_state, activations]`, `min_bytes` (activations below it stay on the device)."""

    name = "cpu-offload"
    options = frozenset({"what", "min_bytes"})

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        super().__init__(session, options)
        what = set(options.get("what") or ("optimizer_state",))
        self.state = "optimizer_state" in what
        self.activations = "activations" in what
        self.min_bytes = int(options.get("min_bytes", MIN_BYTES))
        self._moved_state = self._moved_activations = False

    # --- optimizer state ---

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.state:
            return
        refuse_closure(optimizer, self.name)
        optimizer.register_load_state_dict_post_hook(_all_to_host)

    def within_step(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> Any:
        """The optimizer's own step for one parameter after the other, its state on the device only meanwhile.

        The arithmetic and its order within a parameter are those of the whole step.
        """
        if not self.state:
            return step()
        groups = optimizer.param_groups
        lists = [group["params"] for group in groups]
        # a counter kept in the group (not in the parameter's state) must rise once, not once per parameter
        options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        result = None
        try:
            for group in groups:
                group["params"] = []
            for index, parameters in enumerate(lists):
                for parameter in parameters:
                    if parameter.grad is None:
                        continue
                    for group, before in zip(groups, options, strict=True):
                        group.update(before)
                    _to_device(optimizer.state.get(parameter), parameter)
                    groups[index]["params"] = [parameter]
                    result = step()
                    _to_host(optimizer.state.get(parameter))
                    self._moved_state = True
                groups[index]["params"] = []
        finally:
            for group, parameters in zip(groups, lists, strict=True):
                group["params"] = parameters
        return result

    # --- activations ---

    def during_root(self) -> AbstractContextManager[Any] | None:
        return saved_tensors_hooks(self._pack(), _unpack) if self.activations else None

    def _pack(self) -> Callable[[torch.Tensor], Any]:
        """A pack hook that copies a tensor saved by several operations once."""
        copies: weakref.WeakValueDictionary[Any, _OnHost] = weakref.WeakValueDictionary()

        def pack(tensor: torch.Tensor) -> Any:
            small = tensor.numel() * tensor.element_size() < self.min_bytes
            if small or _of_parameter(tensor) or _on_another_device(tensor, self.session.device_type):
                return tensor
            self._moved_activations = True
            key = (
                id(tensor.untyped_storage()),
                tensor.storage_offset(),
                tensor.shape,
                tensor.stride(),
                tensor._version,
            )
            held = copies.get(key)
            if held is None or held.storage() is not tensor.untyped_storage():
                held = copies[key] = _OnHost(tensor)
            return held

        return pack

    def unapplied(self) -> str | None:
        if self.state and not self._moved_state:
            return "no optimizer took a step with gradients"
        if self.activations and not self._moved_activations:
            return f"autograd saved no activation of at least {self.min_bytes} bytes"
        return None


class _OnHost:
    """A copy in host memory of a tensor that autograd saved."""

    __slots__ = ("__weakref__", "copy", "device", "storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        self.storage = weakref.ref(tensor.untyped_storage())
        self.copy = _host_copy(tensor.detach(), non_blocking=True)  # read back on the same stream only

    def back(self) -> torch.Tensor:
        return self.copy.to(self.device, non_blocking=True) if self.copy.device != self.device else self.copy


def _unpack(held: Any) -> torch.Tensor:
    back: torch.Tensor = held.back() if isinstance(held, _OnHost) else held
    return back


def _host_copy(tensor: torch.Tensor, *, non_blocking: bool = False) -> torch.Tensor:
    """A copy in host memory, pinned where that can be had; on the CPU too, so that both behave alike."""
    if tensor.device.type != "cpu":
        with suppress(RuntimeError):  # no pinned memory here (locked-memory limit, no driver): pageable is slower only
            host = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu", pin_memory=True
            )
            return host.copy_(tensor, non_blocking=non_blocking)
    return tensor.detach().to("cpu", copy=True)


def _of_parameter(tensor: torch.Tensor) -> bool:
    """A parameter or a view of one: it stays on the device anyway."""
    base = tensor._base if tensor._base is not None else tensor
    return isinstance(base, torch.nn.Parameter) or (base.is_leaf and base.requires_grad)


def _on_another_device(tensor: torch.Tensor, device_type: str) -> bool:
    return tensor.device.type != device_type or tensor.is_sparse


def _to_device(state: Any, parameter: torch.Tensor) -> None:
    _map_state(state, lambda t: t.to(_local(parameter).device, non_blocking=True))


def _to_host(state: Any) -> None:
    _map_state(state, lambda t: t if t.device.type == "cpu" else _host_copy(t))


def _map_state(state: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace the tensors of one parameter's state by `move(tensor)`; scalars (step counters) stay where they are."""
    for key, value in (state or {}).items():
        if not isinstance(value, torch.Tensor) or not value.ndim:
            continue
        if hasattr(value, "_local_tensor"):  # a DTensor keeps its placement; its shard moves
            value._local_tensor = move(value._local_tensor)
        else:
            state[key] = move(value)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = getattr(parameter, "_local_tensor", parameter)
    return local


def _all_to_host(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        _to_host(state)
