"""Libraries of CUDA kernels that a package loads by ctypes: they are not loaded, and their functions do nothing.

Such a function works on tensors that its caller allocated. Known: bitsandbytes (read in its csrc at 0.50: of its
functions only `cget_managed_ptr` allocates, by cudaMallocManaged, beside PyTorch's allocator).
"""

import ctypes
import mmap
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from .patching import Patches

if TYPE_CHECKING:
    from .session import Session

KNOWN = ("libbitsandbytes_cuda",)
PAGED = (
    "paged optimizer state of bitsandbytes is CUDA's managed memory: it counts as the host's, and is on the GPU only "
    "as far as there is room beside PyTorch's own"
)
_managed: list[mmap.mmap] = []  # for good: bitsandbytes never gives it back, and tensors lie on it


class _Function:
    """A C function that does nothing; ctypes' declarations can be put on it."""

    argtypes: Any = None
    restype: Any = None

    def __call__(self, *args: Any) -> int:
        return 0


class _Managed(_Function):
    """`void *cget_managed_ptr(size_t bytes)`; a package keeps its library for longer than a session."""

    note: Callable[[str], None] | None = None

    def __call__(self, *args: Any) -> int:
        if _Managed.note is not None:
            _Managed.note(PAGED)
        nbytes = int(getattr(args[0], "value", args[0]))
        _managed.append(mmap.mmap(-1, max(1, nbytes)))  # no page of it is touched
        return ctypes.addressof(ctypes.c_char.from_buffer(_managed[-1]))


class _Library:
    """What ctypes.CDLL would be."""

    def __init__(self) -> None:
        self._functions: dict[str, _Function] = {"cget_managed_ptr": _Managed()}

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._functions.setdefault(name, _Function())

    def __getitem__(self, name: str) -> _Function:
        return self.__getattr__(name)


def _load(raw: Callable[[str], Any]) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        return _Library() if PurePath(str(name)).name.startswith(KNOWN) else raw(name)

    return load


def install(held: Patches, session: "Session") -> None:
    """`ctypes.cdll.LoadLibrary` until `held` is restored."""
    loader: Any = ctypes.cdll
    held.set(_Managed, "note", staticmethod(session.note))
    held.set(loader, "LoadLibrary", _load(loader.LoadLibrary))
