"""CUDA extensions that scripts import and this machine cannot have: stand-ins with the memory of the real ones.

flash-attn, xformers, apex and Triton are built for a GPU's driver. Where one is not installed here and the *script*
itself imports it, it gets a module whose functions allocate by shape what the real ones do, over torch's own kernels of
the same family. Libraries that merely ask whether it is there hear the truth. bitsandbytes needs none: it is installed
without a GPU, its operators are Python code, which runs (python_kernels.py), and its library of kernels is not loaded
(native_library.py).
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import apex_like, flash_like, native_library, triton_like
from .patching import patches
from .stacks import is_machinery
from .taught import stand_in
from .unsupported import is_library

if TYPE_CHECKING:
    from .session import Session

# package -> submodule ("" = the package itself) -> what makes its names
STAND_INS: Mapping[str, Mapping[str, Callable[[], Mapping[str, object]]]] = {
    "flash_attn": {"": flash_like.names, "flash_attn_interface": flash_like.names},
    "xformers": {"": dict, "ops": flash_like.xformers_names},
    "apex": {
        "": dict,
        "optimizers": apex_like.optimizers,
        "normalization": apex_like.normalization,
    },
    "triton": {"": triton_like.names, "language": triton_like.language},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, after everything that is installed."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.made: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        package, _, rest = name.partition(".")
        known = package in self.made or (rest in STAND_INS.get(package, ()) and _asked_by_script())
        if not known:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=not rest)

    def create_module(self, spec: Any) -> ModuleType:
        return stand_in(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        package, _, rest = module.__name__.partition(".")
        self.made.append(module.__name__)
        vars(module).update(STAND_INS[package].get(rest, dict)())  # of an unknown module, every name is missing
        if not rest:
            self._session.note(f"{package} is not installed here: what its functions allocate is modelled by shape")


def _asked_by_script() -> bool:
    """Whether the import stands in the script, rather than in an installed library."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_machinery(name) and "importlib" not in name:
            return not is_library(name)
        frame = frame.f_back  # type: ignore[assignment]
    return False


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """The stand-ins, and launches of an installed Triton that launch nothing, for the time of the block."""
    finder = _Finder(session)
    with patches() as held:
        if importlib.util.find_spec("triton") is not None:
            triton_like.launch_nothing(held)
        native_library.install(held, session)
        sys.meta_path.append(finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in finder.made:
                sys.modules.pop(name, None)
