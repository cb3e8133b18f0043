"""Safetensors files read to the GPU: mapped into memory and moved, so that their data is never read.

The library's own way to a GPU fills pinned buffers through raw pointers, which tensors without values do not have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .face import canonical_device
from .patching import patches
from .storages import CPU

if TYPE_CHECKING:
    from .session import Session


class _Slice:
    """`safe_open(...).get_slice(name)`: parts of a tensor, moved as they are taken."""

    def __init__(self, slice_: Any, device: torch.device) -> None:
        self._slice, self._device = slice_, device

    def __getitem__(self, index: Any) -> torch.Tensor:
        part: torch.Tensor = self._slice[index].to(self._device)
        return part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slice, name)


def _opener(original: Any) -> type:
    class safe_open:  # noqa: N801  # the library's own name
        """Opens on the host; what is read is moved to the device that was asked for."""

        def __init__(self, filename: Any, framework: Any, device: Any = "cpu", **kwargs: Any) -> None:
            torch_format = str(framework) in ("pt", "torch", "pytorch")
            target = canonical_device(device) if torch_format else CPU
            self._device = target if target.type == "cuda" else CPU
            host = "cpu" if self._device.type == "cuda" else device
            self._file = original(filename, framework=framework, device=host, **kwargs)

        def _move(self, value: Any) -> Any:
            return value.to(self._device) if self._device.type == "cuda" else value

        def __enter__(self) -> "safe_open":
            self._file.__enter__()
            return self

        def __exit__(self, *error: Any) -> Any:
            return self._file.__exit__(*error)

        def get_tensor(self, name: str) -> Any:
            return self._move(self._file.get_tensor(name))

        def get_tensors(self, *args: Any) -> Any:
            found = self._file.get_tensors(*args)
            return {name: self._move(tensor) for name, tensor in found.items()}

        def get_slice(self, name: str) -> Any:
            found = self._file.get_slice(name)
            return _Slice(found, self._device) if self._device.type == "cuda" else found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

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
