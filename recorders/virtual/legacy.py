"""`torch.cuda.FloatTensor` and its kin: constructors, `isinstance` checks and default tensor types of old scripts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .face import canonical_device
from .patching import patches

if TYPE_CHECKING:
    from .session import Session

KINDS = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _Kind(type):
    """The type of `torch.cuda.FloatTensor`: called, it makes a tensor; asked, it looks at dtype and device."""

    dtype: torch.dtype
    is_cuda = True

    def __call__(cls, *args: Any) -> torch.Tensor:
        device = canonical_device("cuda")
        if len(args) == 1 and isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=cls.dtype, device=device)
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].to(device, cls.dtype)
        if len(args) == 1 and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=cls.dtype, device=device)
        return torch.empty(args if args else (0,), dtype=cls.dtype, device=device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype


def _kind(name: str) -> _Kind:
    return _Kind(name, (), {"dtype": KINDS[name], "__module__": "torch.cuda"})


def _set_default(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_default_tensor_type(kind: Any) -> None:
        """A CUDA kind sets the default dtype and the default device."""
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if not name.startswith("torch.cuda."):
            original(kind)
            return
        torch.set_default_dtype(KINDS[name.removeprefix("torch.cuda.")])
        torch.set_default_device("cuda")

    return set_default_tensor_type


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The tensor types of torch.cuda for the time of the block."""
    with patches() as held:
        for name in KINDS:
            held.set(torch.cuda, name, _kind(name))
        held.swap_everywhere([(torch.set_default_tensor_type, _set_default(torch.set_default_tensor_type))])
        yield
