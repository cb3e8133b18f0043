"""`torch.compile` and TorchScript run eagerly; what inductor would fuse takes no memory (fusion.py). Reports say it.

Compiled code would see `meta` tensors and plan its own memory, so it cannot be followed. A compiled module is the one
itself; it still answers `_orig_mod`, which scripts use to unwrap it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch

from . import compiled_checkpoints
from .flex import compiled_block_mask, is_block_mask_maker
from .fusion import Fusion
from .patching import patches

if TYPE_CHECKING:
    from .session import Session

FUSED = (
    "torch.compile: nothing was compiled; which results inductor keeps out of memory is modelled by its rules, and its "
    "own plan differs by a few percent"
)
UNFUSED = "torch.compile with an eager backend ran eagerly"
SCRIPTED = "TorchScript ran eagerly: fused kernels of the scripted job may need fewer temporaries"
_MARK = "_oomdoc_compiled"


def _compile(session: "Session", modules: "weakref.WeakSet[torch.nn.Module]") -> Callable[..., Any]:
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:  # torch's own name
        """The module itself, or the function as compiled code; as a decorator with arguments, a decorator."""
        if model is None:
            return partial(compile, *args, **kwargs)
        if kwargs.get("disable") or _is_inner_function_of_torch(model):
            return model
        if kwargs.get("backend") in ("eager", "aot_eager"):
            session.note(UNFUSED)
            return model
        session.note(FUSED)
        fusion = session.tracker.fusion = session.tracker.fusion or Fusion(session.tracker)
        if is_block_mask_maker(model):
            return compiled_block_mask(model)
        if not isinstance(model, torch.nn.Module):
            return fusion.compiled(model)
        model.__dict__[_MARK] = True
        model._compiled_call_impl = fusion.compiled(model._call_impl)  # as Module.compile does
        modules.add(model)
        return model

    return compile


def _disable(session: "Session") -> Callable[..., Any]:
    def disable(fn: Any = None, *args: Any, **kwargs: Any) -> Any:  # torch's own names
        """The function as code outside of what is compiled; a module is changed in place."""
        if fn is None:
            return partial(disable, *args, **kwargs)
        if isinstance(fn, type):
            owner: Any = fn
            owner.__call__ = disable(owner.__call__)
            return fn
        if isinstance(fn, torch.nn.Module):
            fn.__dict__["_call_impl"] = disable(fn._call_impl)
            return fn

        @wraps(fn)
        def run(*operands: Any, **options: Any) -> Any:
            fusion = session.tracker.fusion
            with nullcontext() if fusion is None else fusion.outside():
                return fn(*operands, **options)

        return run

    return disable


def _is_inner_function_of_torch(function: object) -> bool:
    """torch compiles a function of its own, as flex_attention does where the script has not."""
    name = getattr(function, "__qualname__", "")
    return "<locals>" in name and str(getattr(function, "__module__", "")).startswith("torch.")


def _original(self: torch.nn.Module) -> torch.nn.Module:
    if _MARK not in self.__dict__:
        raise AttributeError("_orig_mod")
    return self


def _script(session: "Session", original: Callable[..., Any]) -> Callable[..., Any]:
    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if str(getattr(obj, "__module__", "")).startswith("torch._decomp"):  # jvp needs their graphs
            return original(obj, *args, **kwargs)
        session.note(SCRIPTED)
        return obj

    return script


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """torch.compile and torch.jit for the time of the block."""
    modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
    with patches() as held:
        held.swap_everywhere([(torch.compile, _compile(session, modules))])
        compiled_checkpoints.install(held, session)
        held.set(torch.compiler, "disable", _disable(session))
        held.set(torch.nn.Module, "_orig_mod", property(_original))
        jit: Any = torch.jit
        scripted = [getattr(jit, name) for name in ("script", "trace", "freeze")]
        held.swap_everywhere([(each, _script(session, each)) for each in scripted])
        try:
            yield
        finally:
            for module in modules:
                module._compiled_call_impl = None
