"""Factories that the C++ argument parser of a CPU build refuses, or that no dispatch mode sees.

* an integer device ("Cannot access accelerator device when none is available");
* `torch.tensor`, `as_tensor`, `asarray`, `new_tensor` on `cuda`: their final copy needs a CUDA device guard and is
  hidden from modes. As on a GPU, the data is built on the host and then copied;
* `pin_memory=True`, which a CPU build refuses;
* the user's own `device="meta"`, which must not be taken for a virtual tensor.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .face import canonical_device
from .hostside import mark_pinned
from .patching import patches
from .private import TENSOR_BASE, DeviceContext, device_constructors, function_mode_stack, function_modes
from .storages import CPU, asking_for_meta, inside

if TYPE_CHECKING:
    from .session import Session

_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full")
_FROM_DATA = ("tensor", "as_tensor", "asarray")


def _asked(kwargs: dict[str, Any]) -> torch.device | None:
    """The device of a factory call: named, or the one of `torch.device(...)` contexts and set_default_device."""
    device = kwargs.get("device")
    if device is not None:
        return canonical_device(device)
    return _default_device() if function_modes() else None


def _default_device() -> torch.device | None:
    """Of the innermost `torch.device(...)` context (set_default_device enters one); None = there is none.

    `torch.get_default_device` calls `torch.tensor` to learn the index.
    """
    for mode in reversed(function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return canonical_device(mode.device)
    return None


def _plain(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A factory of given sizes."""

    @functools.wraps(original)
    def factory(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.pop("pin_memory", False):
            return mark_pinned(factory(*args, **kwargs))
        device = _asked(kwargs)
        if device is None or inside.depth:
            return original(*args, **kwargs)
        if device.type == "meta":
            with asking_for_meta():
                return original(*args, **kwargs)
        if type(kwargs.get("device")) is int:
            kwargs["device"] = device
        return original(*args, **kwargs)

    return factory


def _of_data(original: Callable[..., torch.Tensor], *, copies: bool) -> Callable[..., torch.Tensor]:
    """`torch.tensor` and its kin. `copies`: a tensor given as data is copied even when it is there already."""

    @functools.wraps(original)
    def factory(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.pop("pin_memory", False):
            return mark_pinned(factory(data, *args, **kwargs))
        device = _asked(kwargs)
        if isinstance(data, torch.Tensor) and not inside.depth:
            return _of_tensor(data, copies, device if "device" in kwargs else None, args, kwargs)
        if isinstance(data, (list, tuple)) and not inside.depth:
            dtypes: set[torch.dtype] = set()
            data = _read(data, dtypes)
            if dtypes and not args and kwargs.get("dtype") is None:
                kwargs["dtype"] = functools.reduce(torch.promote_types, dtypes)
        if device is None or device.type == "cpu" or inside.depth:
            return original(data, *args, **kwargs)
        grad = kwargs.pop("requires_grad", False)
        made = original(data, *args, **{**kwargs, "device": CPU}).to(device)
        return made.requires_grad_() if grad else made

    return factory


def _read(data: Any, dtypes: set[torch.dtype]) -> Any:
    """Virtual tensors among nested lists as the numbers that CUDA would copy to the host, one by one."""
    if isinstance(data, torch.Tensor):
        if not data.is_cuda:
            return data
        dtypes.add(data.dtype)
        return data.tolist()
    if isinstance(data, (list, tuple)) and any(isinstance(each, (torch.Tensor, list, tuple)) for each in data):
        return [_read(each, dtypes) for each in data]
    return data


def _of_tensor(
    data: torch.Tensor, copies: bool, device: torch.device | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """`torch.tensor(tensor)` is a detached clone, `as_tensor(tensor)` the tensor itself, either one moved or cast."""
    dtype = kwargs.get("dtype") or (args[0] if args and isinstance(args[0], torch.dtype) else data.dtype)
    copy = copies or bool(kwargs.get("copy"))
    made = (data.detach() if copies else data).to(device if device is not None else data.device, dtype, copy=copy)
    return made.requires_grad_() if kwargs.get("requires_grad") else made


def _new_tensor(self: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> torch.Tensor:
    target = self.device if device is None else canonical_device(device)
    kwargs.pop("layout", None)
    return torch.tensor(data, dtype=dtype or self.dtype, device=target, **kwargs)


def _wrap_new(name: str) -> Callable[..., torch.Tensor]:
    original: Callable[..., torch.Tensor] = getattr(TENSOR_BASE, name)

    @functools.wraps(original)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.pop("pin_memory", False):
            return mark_pinned(method(self, *args, **kwargs))
        device = kwargs.get("device")
        if device is None or inside.depth:
            return original(self, *args, **kwargs)
        target = kwargs["device"] = canonical_device(device)
        if target.type == "meta":
            with asking_for_meta():
                return original(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return method


class _AnyDevice(type):
    """`torch.device`: torch's own class, but `torch.device(0)` is `cuda:0` on a CPU build too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RAW_DEVICE)

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if args and type(args[0]) is int and len(args) == 1 and not kwargs:
            args = ("cuda", args[0])
        made: torch.device = _RAW_DEVICE(*args, **kwargs)
        return made


_RAW_DEVICE: Any = torch.device


class Device(metaclass=_AnyDevice):
    """Stands for `torch.device`."""


Device.__module__, Device.__qualname__, Device.__name__ = "torch", "device", "device"  # so that devices pickle


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The factories of torch and of Tensor for the time of the block."""
    constructors = device_constructors()  # computed and cached before any name is replaced
    names = sorted(
        {name for name, value in vars(torch).items() if callable(value) and value in constructors} | set(_LIKE)
    )
    with patches() as held:
        swaps: list[tuple[object, object]] = [(_RAW_DEVICE, Device)]
        for name in names:
            original = getattr(torch, name)
            wrapped = _of_data(original, copies=name == "tensor") if name in _FROM_DATA else _plain(original)
            swaps.append((original, wrapped))
        held.swap_everywhere(swaps)
        held.set(torch.Tensor, "new_tensor", _new_tensor)
        for name in _NEW:
            held.set(torch.Tensor, name, _wrap_new(name))
        yield
