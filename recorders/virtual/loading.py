"""Safetensors files: the shapes of big tensors without their data, small ones as they are.

The header tells every shape. A float tensor that would be virtual if the script made it is virtual when it is loaded,
on the GPU or on the host, so that a checkpoint larger than this machine's memory loads at once; small tensors are read
at their place in the file. Format: https://huggingface.co/docs/safetensors, "Format".
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from .face import canonical_device
from .host import is_big
from .patching import patches
from .saving import SAFETENSORS_NAMES
from .unsupported import unsupported

if TYPE_CHECKING:
    from .session import Session

_DTYPES = {name: dtype for dtype, name in SAFETENSORS_NAMES.items()}


class _File:
    """`safetensors.safe_open` for PyTorch: what is taken from it is on `device`."""

    def __init__(self, filename: Any, device: torch.device) -> None:
        self._path, self._device = os.fspath(filename), device
        with open(self._path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        self._data = 8 + length
        self._metadata = header.pop("__metadata__", None)
        self._header: dict[str, Any] = header

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def keys(self) -> list[str]:
        return sorted(self._header)

    def offset_keys(self) -> list[str]:
        return sorted(self._header, key=lambda name: self._header[name]["data_offsets"])

    def metadata(self) -> Any:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.get_slice(name)[...]

    def get_tensors(self, names: Any = None) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in (self.keys() if names is None else names)}

    def get_slice(self, name: str) -> "_Slice":
        if name not in self._header:
            raise KeyError(f"File does not contain tensor {name}")
        entry = self._header[name]
        return _Slice(entry["dtype"], entry["shape"], self._device, lambda: self._read(entry["data_offsets"]))

    def _read(self, offsets: tuple[int, int]) -> bytearray:
        with open(self._path, "rb") as file:
            file.seek(self._data + offsets[0])
            return bytearray(file.read(offsets[1] - offsets[0]))


class _Slice:
    """One tensor of a file, parts of which can be taken."""

    def __init__(self, dtype: str, shape: list[int], device: torch.device, read: Callable[[], bytearray]) -> None:
        self._dtype, self._shape, self._device, self._read = dtype, shape, device, read

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        dtype = _DTYPES.get(self._dtype)
        if dtype is None:
            raise unsupported(f"safetensors:{self._dtype}", "a type of number that is not known here")
        if is_big(prod(self._shape), dtype):
            if index is ...:
                return torch.empty(self._shape, dtype=dtype, device=self._device)
            return torch.empty(self._shape, dtype=dtype)[index].to(self._device)
        data = self._read()
        whole = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        part: torch.Tensor = whole.view(self._shape)[index]
        return part.to(self._device)


def _opener(original: Any) -> Callable[..., Any]:
    def safe_open(filename: Any, framework: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        target = canonical_device(device) if str(framework) in ("pt", "torch", "pytorch") else None
        if target is None or target.type not in ("cpu", "cuda") or not os.path.isfile(filename):
            return original(filename, framework=framework, device=device, **kwargs)
        return _File(filename, target)

    return safe_open


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """`safetensors.safe_open` for the time of the block."""
    with patches() as held:
        try:
            import safetensors.torch
        except ImportError:  # not installed: the script cannot load with it
            yield
            return
        library: Any = safetensors
        held.swap_everywhere([(library.safe_open, _opener(library.safe_open))], roots=("safetensors",))
        yield
