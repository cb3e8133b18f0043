"""Operations that torch cannot describe, taught by whoever knows them: shapes of outputs, and bytes held meanwhile.

A CUDA extension has no shapes without its kernels. A package (its own, or a person's) tells them by an entry point of
the group `oomdoc.operations`, whose value is a mapping from names to `Operation`:

    # pyproject.toml                                   # mylib_memory.py
    [project.entry-points."oomdoc.operations"]         from oomdoc.recorders.virtual.taught import Operation
    mylib = "mylib_memory:OPERATIONS"                  OPERATIONS = {"mylib::fused_mlp": Operation(outputs=mlp)}

`namespace::name` is an operator of `torch.ops` (all its overloads); `package.module:function` a function of a compiled
module, which need not be installed here. What is registered that way wins over what torch would do.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ...errors import OomdocError
from ..errors import MissingExtensionError
from .kernel_call import KernelCall
from .scratch import Scratch
from .unsupported import unsupported

if TYPE_CHECKING:
    from .session import Session

GROUP = "oomdoc.operations"


def no_workspace(*args: Any, **kwargs: Any) -> Sequence[int]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Memory of one operation; both functions are called with the arguments of the operation itself.

    `outputs` makes what it returns, by `torch.empty(..., device=x.device)` and the like: each new tensor is allocated;
    an argument that it returns was written in place. `workspace`: bytes of each allocation that the kernel makes after
    its outputs and gives back at its end.
    """

    outputs: Callable[..., Any]
    workspace: Callable[..., Sequence[int]] = no_workspace


def registered() -> dict[str, Operation]:
    """All that entry points tell; raises OomdocError for one that cannot be loaded or tells something else."""
    found: dict[str, Operation] = {}
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            told = entry.load()
        except Exception as error:  # a stranger's module may raise anything
            raise OomdocError(f"entry point {entry.name} of {GROUP} cannot be loaded: {error}") from error
        if not isinstance(told, Mapping) or not all(isinstance(each, Operation) for each in told.values()):
            raise OomdocError(f"entry point {entry.name} of {GROUP}: {entry.value} is no mapping of names to Operation")
        found.update(told)
    return found


def perform(session: "Session", name: str, operation: Operation, args: Any, kwargs: Any) -> Any:
    """The outputs, allocated, with the workspace around them."""
    tracker = session.tracker
    tracker.operations += 1
    result = operation.outputs(*args, **kwargs)
    wanted = [Scratch(bytes=int(n), source=f"workspace of {name}") for n in operation.workspace(*args, **kwargs)]
    if wanted:
        kernel = KernelCall(tracker, wanted, session.device.current)
        kernel.begin()
        kernel.finish()
    return result


def overloads(name: str) -> list[Any]:
    """The overloads of `namespace::name`, or the one of `namespace::name.overload`; none if torch lacks it."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if packet is None:
        return []
    return [getattr(packet, each) for each in packet.overloads() if not overload or each == overload]


class Handlers:
    """Operators of torch.ops that were taught: found by name when they first come, as they may be defined late."""

    def __init__(self, session: "Session", taught: Mapping[str, Operation]) -> None:
        self._session = session
        self._taught = {name: each for name, each in taught.items() if "::" in name}

    def __bool__(self) -> bool:
        return bool(self._taught)

    def find(self, func: Any) -> Any:
        """A handler for `func`, None where nobody taught it."""
        name = func.name()
        operation = self._taught.get(name) or self._taught.get(name.partition(".")[0])
        return None if operation is None else partial(self._handle, name, operation)

    def _handle(self, name: str, operation: Operation, tracker: Any, func: Any, args: Any, kwargs: Any) -> Any:
        return tracker.reentered(partial(perform, self._session, name, operation), (args, kwargs), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules with taught functions: the real one with these replaced, or one that has nothing else."""

    def __init__(self, session: "Session", functions: Mapping[str, Mapping[str, Operation]]) -> None:
        self._session, self._functions = session, functions
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if self._looking or name not in self._functions:
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec: Any) -> ModuleType:
        self._looking = True
        try:
            return importlib.import_module(spec.name)
        except ImportError:  # not here, or not without a GPU's libraries
            return stand_in(spec.name)
        finally:
            self._looking = False

    def exec_module(self, module: ModuleType) -> None:
        for name, operation in self._functions[module.__name__].items():
            setattr(module, name, partial(_called, self._session, f"{module.__name__}:{name}", operation))


def _called(session: "Session", name: str, operation: Operation, *args: Any, **kwargs: Any) -> Any:
    return perform(session, name, operation, args, kwargs)


def stand_in(name: str) -> ModuleType:
    """A module of which only what is put on it can be used."""
    module = ModuleType(name, f"Stands in for {name}, which this machine lacks.")

    def missing(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise unsupported(f"{name}:{attribute}", f"{name} is not installed here", MissingExtensionError)

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """What entry points and known_extensions.py teach, for the time of the block."""
    taught = registered()
    functions: dict[str, dict[str, Operation]] = {}
    for name, operation in taught.items():
        module, _, function = name.partition(":")
        if "::" not in name and function:
            functions.setdefault(module, {})[function] = operation
    handlers = Handlers(session, taught)
    session.tracker.taught = handlers.find if handlers else None
    finder = _Finder(session, functions)
    hidden = {name: sys.modules.pop(name) for name in functions if name in sys.modules}
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        session.tracker.taught = None
        for name in functions:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
