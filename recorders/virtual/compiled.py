"""`torch.compile` and TorchScript run eagerly, and the report says so.

Compiled code would see `meta` tensors and plan its own memory, so it cannot be followed. The function or module itself
is returned; a compiled module still answers `_orig_mod`, which scripts use to unwrap it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .flex import compiled_block_mask, is_block_mask_maker
from .patching import patches

if TYPE_CHECKING:
    from .session import Session

COMPILED = "torch.compile ran eagerly: the compiled job plans its memory differently, mostly with fewer temporaries"
SCRIPTED = "TorchScript ran eagerly: fused kernels of the scripted job may need fewer temporaries"
_MARK = "_oomdoc_compiled"


def _compile(session: "Session") -> Callable[..., Any]:
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:  # torch's own name
        """Returns its argument; as a decorator with arguments, a decorator that does."""
        if model is None:
            return partial(compile, *args, **kwargs)
        if kwargs.get("disable") or _is_inner_function_of_torch(model):
            return model
        session.note(COMPILED)
        session.tracker.compiles |= kwargs.get("backend") not in ("eager", "aot_eager")
        if is_block_mask_maker(model):
            return compiled_block_mask(model)
        if isinstance(model, torch.nn.Module):
            model.__dict__[_MARK] = True
        return model

    return compile


def _is_inner_function_of_torch(function: object) -> bool:
    """torch compiles a function of its own, as flex_attention does where the script has not."""
    name = getattr(function, "__qualname__", "")
    return "<locals>" in name and str(getattr(function, "__module__", "")).startswith("torch.")


def _original(self: torch.nn.Module) -> torch.nn.Module:
    if _MARK not in self.__dict__:
        raise AttributeError("_orig_mod")
    return self


def _script(session: "Session") -> Callable[..., Any]:
    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        session.note(SCRIPTED)
        return obj

    return script


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """torch.compile and torch.jit for the time of the block."""
    script = _script(session)
    with patches() as held:
        held.swap_everywhere([(torch.compile, _compile(session))])
        held.set(torch.nn.Module, "_orig_mod", property(_original))
        jit: Any = torch.jit
        held.swap_everywhere([(getattr(jit, name), script) for name in ("script", "trace", "freeze")])
        yield
