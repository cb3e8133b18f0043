"""How a virtual tensor looks to the script: on `cuda:N`, with a pointer, movable as on a GPU.

`torch.Tensor` is a Python class over a C one, so attributes set on it are seen by every tensor and parameter, in every
thread; the C answers stay reachable through `private`. While the tracker works on a thread (`inside.depth`), torch's
own meta kernels ask a tensor for its device and must hear `meta`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from .patching import Patches, patches
from .private import (
    C_NN,
    TENSOR_BASE,
    C,
    fake_tensor_class,
    make_wrapper_subclass,
    raw_device,
    raw_is_meta,
    raw_storage,
    shallow_copy_compatible,
    swap_tensor_impl,
)
from .storages import CPU, META, RECORDS, Kind, asking_for_meta, device_of, inside, kind_of, looking_inside, tag_storage
from .streams import selected

if TYPE_CHECKING:
    from .session import Session

_NOWHERE = 1 << 60  # no process has memory there: who follows such a pointer is stopped, and corrupts nothing
_BASE: Any = TENSOR_BASE
_raw_to: Callable[..., torch.Tensor] = _BASE.to
_raw_data_ptr: Callable[[torch.Tensor], int] = _BASE.data_ptr
_raw_data: Any = _BASE.data
_raw_type: Callable[..., Any] = _BASE.type
_raw_repr: Callable[..., str] = torch.Tensor.__repr__
_raw_format: Callable[[torch.Tensor, str], str] = torch.Tensor.__format__


class Process:
    """Of a forked child, in which CUDA is an error."""

    forked = False


def canonical_device(device: Any) -> torch.device:
    """The device a script means: an integer is a CUDA index, `cuda` alone is this thread's current one."""
    if type(device) is int:
        device = torch.device("cuda", device)
    found = device if isinstance(device, torch.device) else torch.device(device)
    if found.type != "cuda":
        return found
    if Process.forked:
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
            "'spawn' start method"
        )
    return found if found.index is not None else torch.device("cuda", selected.device)


# ---- what a tensor says of itself


def _device(self: torch.Tensor) -> torch.device:
    if inside.depth:
        return raw_device(self)
    return device_of(self)


def _is_cuda(self: torch.Tensor) -> bool:
    return _device(self).type == "cuda"


def _is_cpu(self: torch.Tensor) -> bool:
    return _device(self).type == "cpu"


def _is_meta(self: torch.Tensor) -> bool:
    return _device(self).type == "meta"


def _get_device(self: torch.Tensor) -> int:
    device = _device(self)
    return -1 if device.index is None else device.index


def pointer_of(storage: torch.UntypedStorage) -> int:
    """Address of a meta storage: the simulated one; for host storages without values one of their own."""
    record = RECORDS.get(storage._cdata)
    if record is None or record.nbytes == 0:
        return 0
    if record.kind is Kind.CUDA:
        return record.address
    return _NOWHERE | storage._cdata if record.kind is Kind.HOST else 0


def _data_ptr(self: torch.Tensor) -> int:
    if not raw_is_meta(self):
        return _raw_data_ptr(self)
    base = pointer_of(raw_storage(self))
    return base + int(self.storage_offset()) * self.element_size() if base else 0


def _type_name(self: torch.Tensor) -> str:
    name: str = _raw_type(self)
    device = device_of(self)
    if raw_is_meta(self) and device.type != "meta":
        return name.replace("torch.meta.", "torch.cuda." if device.type == "cuda" else "torch.")
    return name


def _type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """`tensor.type()`: its name; `tensor.type(kind)`: converted, to the GPU for a `torch.cuda` kind."""
    if dtype is None:
        return _type_name(self)
    if isinstance(dtype, torch.dtype):
        return self.to(dtype, non_blocking)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    plain = name.replace("torch.cuda.", "torch.")
    kind = getattr(torch, plain.removeprefix("torch."), None)
    kind = getattr(kind, "dtype", None)
    if not isinstance(kind, torch.dtype):
        return _raw_type(self, dtype, non_blocking, **kwargs)
    on_gpu = name.startswith("torch.cuda.")
    device = (self.device if self.is_cuda else canonical_device("cuda")) if on_gpu else CPU
    return self.to(device, kind, non_blocking)


# ---- moving


def _move_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """(device, dtype, the rest) of a `Tensor.to` call, in any of its three forms."""
    rest = dict(kwargs)
    device, dtype = rest.pop("device", None), rest.pop("dtype", None)
    other = rest.pop("other", None)
    left = list(args)
    if left and isinstance(left[0], torch.Tensor):
        other = left.pop(0)
    elif left and isinstance(left[0], torch.dtype):
        dtype = left.pop(0)
    elif left:
        device = left.pop(0)
        if left and (left[0] is None or isinstance(left[0], torch.dtype)):
            dtype = left.pop(0)
    if other is not None:
        device, dtype = device_of(other), other.dtype
    rest.update(zip(("non_blocking", "copy"), left, strict=False))
    return device, dtype, rest


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if has_torch_function_unary(self):
        result: torch.Tensor = handle_torch_function(_to, (self,), self, *args, **kwargs)
        return result
    if inside.depth:
        return _raw_to(self, *args, **kwargs)
    device, dtype, rest = _move_arguments(args, kwargs)
    here = device_of(self)
    if device is not None:
        device = canonical_device(device)
    if device is None or device == here:
        # the same device: at most a cast or a copy; said without a device, which for C++ is `meta`
        return _raw_to(self, dtype if dtype is not None else self.dtype, **rest)
    if device == META:
        with asking_for_meta():
            return _raw_to(self, device=device, dtype=dtype or self.dtype, **rest)
    if here == META and device.type == "cpu":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    return _raw_to(self, device=device, dtype=dtype or self.dtype, **rest)


def _cuda(
    self: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> torch.Tensor:
    target = canonical_device("cuda" if device is None else device)
    if target.type != "cuda":
        raise RuntimeError("Invalid device, must be cuda device")
    return self.to(target, non_blocking=non_blocking, memory_format=memory_format)


def _cpu(self: torch.Tensor, memory_format: Any = torch.preserve_format) -> torch.Tensor:
    return self.to(CPU, memory_format=memory_format)


# ---- `.data =` across devices, which keeps a Parameter's identity when its module moves


def _set_data(self: torch.Tensor, value: torch.Tensor) -> None:
    if raw_is_meta(self) == raw_is_meta(value):
        _raw_data.__set__(self, value)
        return
    grad, hooks = self.grad, self._backward_hooks
    fresh = value.detach().requires_grad_(self.requires_grad)
    if grad is not None:
        self.grad = None
    swap_tensor_impl(self, fresh)
    if hooks:  # they hang on the C++ object that has just gone
        self._backward_hooks = None
        self._backward_hooks = hooks
    if grad is not None:
        self.grad = _stand_in(grad, self)


def _stand_in(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A gradient of the right device with nothing in it: `Module._apply` sets its `.data` next."""
    if not raw_is_meta(like):
        return torch.empty_like(grad, device=CPU)
    empty = torch.empty(0, dtype=grad.dtype, device="meta")
    tag_storage(raw_storage(empty), Kind.META)
    return empty.as_strided(grad.shape, (0,) * grad.dim()) if grad.numel() else empty.view(grad.shape)


def _compatible(input: torch.Tensor, from_: torch.Tensor) -> bool:
    """`torch._has_compatible_shallow_copy_type`: on a CUDA build CPU and CUDA tensors are, true meta with neither.

    The signature is that of torch._dynamo's substitute, which compares them on import.
    """
    strided = input.layout == torch.strided == from_.layout
    if not strided or type(from_) not in (torch.Tensor, torch.nn.Parameter):
        return _raw_compatible(input, from_)
    kinds = kind_of(input), kind_of(from_)
    return kinds[0] is kinds[1] if Kind.META in kinds else True


_raw_compatible = shallow_copy_compatible


# ---- reading values


def _repr(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
    if not raw_is_meta(self) or inside.depth or has_torch_function_unary(self):
        return _raw_repr(self, tensor_contents=tensor_contents)
    device = device_of(self)
    where = "" if device.type == "cpu" else f", device='{device}'"
    kind = "" if self.dtype is torch.get_default_dtype() else f", dtype={self.dtype}"
    grad = f", grad_fn=<{type(self.grad_fn).__name__}>" if self.grad_fn is not None else ""
    grad = ", requires_grad=True" if not grad and self.requires_grad else grad
    text = f"tensor(..., size={tuple(self.shape)}{where}{kind}{grad})"
    return f"Parameter containing:\n{text}" if isinstance(self, torch.nn.Parameter) else text


def _format(self: torch.Tensor, spec: str) -> str:
    if raw_is_meta(self) and self.dim() == 0 and device_of(self).type != "meta":
        return format(self.item(), spec)
    return _raw_format(self, spec)


def _no_exchange(name: str) -> Callable[..., Any]:
    raw = getattr(torch.Tensor, name)

    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if raw_is_meta(self) and device_of(self).type != "meta":
            raise RuntimeError(
                f"oomdoc: {name} gives GPU memory to another library, and the virtual GPU has no values to give. "
                "Keep that library out of the run, or record on a real GPU (--real)."
            )
        return raw(self, *args, **kwargs)

    return method


def _parse_to(raw: Callable[..., Any]) -> Callable[..., Any]:
    """`torch._C._nn._parse_to`, which reads the arguments of `Module.to`: a CPU build refuses an integer device."""

    def parse(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = (canonical_device(args[0]), *args[1:])
        if type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": canonical_device(kwargs["device"])}
        return raw(*args, **kwargs)

    return parse


_Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]


def _grouped(raw: Callable[..., _Groups]) -> Callable[..., _Groups]:
    """`torch._C._group_tensors_by_device_and_dtype`, by which optimizers and clipping choose their foreach kernels."""

    def group(tensors: list[list[Any]], with_indices: bool = False) -> _Groups:
        out: _Groups = {}
        for (device, dtype), (lists, indices) in raw(tensors, with_indices).items():
            if device.type != "meta":
                out[device, dtype] = lists, indices
                continue
            shown = [each.device for each in lists[0]]
            for one in dict.fromkeys(shown):
                picked = [at for at, each in enumerate(shown) if each == one]
                out[one, dtype] = (
                    [[column[at] for at in picked] if column else column for column in lists],
                    [indices[at] for at in picked] if indices else indices,
                )
        return out

    return group


def _wrapper_subclass(raw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`Tensor._make_wrapper_subclass`: DTensor and others wrap a virtual tensor and ask for its device, `cuda`."""

    def make(cls: type, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is None:
            return raw(cls, *args, **kwargs)
        device = canonical_device(device)
        if device.type == "cuda":
            made = raw(cls, *args, **{**kwargs, "device": META})
            tag_storage(raw_storage(made), Kind.CUDA, device.index)  # some ask themselves while they say what is inside
            return made
        made = raw(cls, *args, **kwargs)
        if device.type == "meta" and not inside.depth:
            tag_storage(raw_storage(made), Kind.META)
        return made

    return make


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The overrides on torch.Tensor for the time of the block."""
    fake: Any = fake_tensor_class()
    with patches() as held:
        _install_on_tensor(held)
        held.set(C_NN, "_parse_to", _parse_to(C_NN._parse_to))
        held.set(C, "_group_tensors_by_device_and_dtype", _grouped(C._group_tensors_by_device_and_dtype))
        held.set(fake, "__new__", staticmethod(_fake_tensor_new(fake.__new__)))
        held.swap_everywhere([(shallow_copy_compatible, _compatible)])
        yield


def _fake_tensor_new(raw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`FakeTensor.__new__` insists that the tensor inside is on `meta`."""

    def new(cls: type, *args: Any, **kwargs: Any) -> torch.Tensor:
        with looking_inside():
            return raw(cls, *args, **kwargs)

    return new


def _install_on_tensor(held: Patches) -> None:
    values: dict[str, object] = {
        "device": property(_device),
        "is_cuda": property(_is_cuda),
        "is_cpu": property(_is_cpu),
        "is_meta": property(_is_meta),
        "get_device": _get_device,
        "data_ptr": _data_ptr,
        "type": _type,
        "to": _to,
        "cuda": _cuda,
        "cpu": _cpu,
        "data": property(_raw_data.__get__, _set_data),
        "__repr__": _repr,
        "__format__": _format,
        "__dlpack__": _no_exchange("__dlpack__"),
        "_make_wrapper_subclass": staticmethod(_wrapper_subclass(make_wrapper_subclass)),
    }
    held.set_all(torch.Tensor, values)
