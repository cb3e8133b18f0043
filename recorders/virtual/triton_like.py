"""Triton kernels launch nothing: a kernel works on tensors that the script allocated, and allocates none itself.

Where Triton is not installed, a stand-in for the names that scripts use to define and launch kernels.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from .patching import Patches


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


class _Kernel:
    """What `@triton.jit` makes: `kernel[grid](...)` does nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return _nothing

    run = warmup = _nothing


def jit(function: Any = None, **options: Any) -> Any:
    """Also with options, and of a function that a kernel calls."""
    return _Kernel if function is None else _Kernel(function)


def _passing(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """A decorator with arguments that changes nothing: autotune, heuristics."""
    return lambda kernel: kernel


class Config:
    """triton.Config: one candidate of an autotuner."""

    def __init__(self, kwargs: Mapping[str, Any], **options: Any) -> None:
        self.kwargs = dict(kwargs)


class _Language(ModuleType):
    """triton.language: its names stand in kernels, which never run, and in their annotations and defaults."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def names() -> Mapping[str, object]:
    return {
        "jit": jit,
        "autotune": _passing,
        "heuristics": _passing,
        "Config": Config,
        "cdiv": lambda x, y: -(-x // y),
        "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
        "__version__": "3.0.0",
    }


def language() -> Mapping[str, object]:
    return {"__getattr__": _Language("triton.language").__getattr__}


def launch_nothing(held: Patches) -> None:
    """An installed Triton: launches, and the trial runs of its autotuner, return at once."""
    import importlib

    runtime: Any = importlib.import_module("triton.runtime")
    for owner in ("JITFunction", "Autotuner", "Heuristics"):
        kind = getattr(runtime, owner, None)
        if kind is not None:
            held.set(kind, "run", _nothing)
