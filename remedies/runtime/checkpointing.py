"""activation-checkpointing at run time: chosen modules keep their inputs only and run again in backward.

The `forward` of their class is replaced, so the module tree, its names and its state_dict stay as they are; hooks
(FSDP's among them) stay outside the recomputed part. `torch.utils.checkpoint` (non-reentrant) keeps the random
state, so dropout draws the same masks again.
"""

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .application import Application, CannotApplyError
from .modules import of_classes, repeated_blocks
from .patches import Patches
from .session import Session


class ActivationCheckpointing(Application):
    """`modules: [ClassName, ...]` (default: the model's repeated blocks), `every: k` (each k-th of them)."""

    name = "activation-checkpointing"
    options = frozenset({"modules", "every"})

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        super().__init__(session, options)
        self.classes: tuple[str, ...] = tuple(options.get("modules") or ())
        self.every = int(options.get("every", 1))
        self._chosen: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._patches = Patches()
        self._patched: set[type] = set()
        self._applied = False

    def root_called(self, module: torch.nn.Module) -> None:
        model = self.session.registry.top_of(module)
        if model in self._models or not torch.is_grad_enabled():
            return
        self._models.add(model)
        classes = self.classes or repeated_blocks(model)
        for index, block in enumerate(of_classes(model, classes)):
            if index % self.every == 0:
                self._chosen.add(block)
                self._patch(type(block))
        _without_cache(model)

    def _patch(self, cls: type) -> None:
        owner = next(c for c in cls.__mro__ if "forward" in vars(c))
        if owner not in self._patched:
            self._patched.add(owner)
            self._patches.replace(owner, "forward", self._checkpointed)

    def _checkpointed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not (module.training and torch.is_grad_enabled() and module in self._chosen):
                return original(module, *args, **kwargs)
            self._applied = True
            return checkpoint(original, module, *args, use_reentrant=False, **self._without_cache(module, args, kwargs))

        return forward

    def _without_cache(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The block's arguments without a key-value cache, which a second forward would fill twice.

        Nothing in training reads it. A cache at a place that has no name to leave out is refused.
        """
        if any(_is_cache(value) for value in args):
            raise CannotApplyError(
                f"activation-checkpointing: {type(module).__name__} is called with a key-value cache, which the second "
                "forward would fill again. Call the model with use_cache=False in training."
            )
        caches = [key for key, value in kwargs.items() if _is_cache(value)]
        if not caches:
            return kwargs
        self.session.note(f"{type(module).__name__} runs without the key-value cache that it is called with")
        plain = {**kwargs, **dict.fromkeys(caches)}
        return {**plain, "use_cache": False} if plain.get("use_cache") else plain

    def gradient_scale(self, loss: torch.Tensor) -> None:
        """Before the first backward at the latest: refuse when no module of these classes is there."""
        if not self._chosen and not self._applied:
            self._refuse()

    def _refuse(self) -> None:
        present = sorted({name for model in self._models for name in repeated_blocks(model)})
        there = f"repeated blocks here: {', '.join(present)}" if present else "this model has no repeated blocks"
        wanted = f"no module of class {', '.join(self.classes)}" if self.classes else "no block to checkpoint"
        raise CannotApplyError(
            f"activation-checkpointing found {wanted} ({there}). Name the classes under modules: in oomdoc.yaml."
        )

    def unapplied(self) -> str | None:
        return None if self._applied else "no such module was called in training mode with gradients enabled"

    def undo(self) -> None:
        self._patches.undo()


def _without_cache(model: torch.nn.Module) -> None:
    """Hugging Face models fill a key-value cache in forward; a decoder inside one has a configuration of its own."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if (
            config is not None
            and getattr(config, "use_cache", False)
            and hasattr(module, "supports_gradient_checkpointing")
        ):
            config.use_cache = False


def _is_cache(value: Any) -> bool:
    """Of transformers, or of the same interface: layers append to it and read its length."""
    return callable(getattr(value, "update", None)) and callable(getattr(value, "get_seq_length", None))
