"""no-grad-evaluation at run time: a model that is called in eval mode builds no graph.

A model in eval mode may be trained all the same (frozen statistics) or lie between the trained parameters and the loss
(a perceptual loss). Nothing is changed where an input needs a gradient, and the first backward after a call that was
changed is refused if the model's own parameters are to be trained and it was not called in training mode since.
"""

import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from .application import Application, CannotApplyError
from .session import Session


class NoGradEvaluation(Application):
    """No options."""

    name = "no-grad-evaluation"

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        super().__init__(session, options)
        self._called: torch.nn.Module | None = None
        self._changed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # since each was last trained
        self._trained: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        self._applied = False

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._trained.add(parameter)

    def root_called(self, module: torch.nn.Module) -> None:
        self._called = module
        if module.training:
            self._changed.discard(module)

    def during_call(self, args: Any, kwargs: Any) -> AbstractContextManager[Any] | None:
        module = self._called
        if module is None or module.training or _needs_gradient((args, kwargs)):
            return None
        self._changed.add(module)
        self._applied = True
        return torch.no_grad()

    def gradient_scale(self, loss: torch.Tensor) -> None:
        """Before a backward: was a model that it should reach called without a graph?"""
        for module in self._changed:
            if not loss.requires_grad or any(parameter in self._trained for parameter in module.parameters()):
                raise CannotApplyError(
                    f"the script calls backward() while {type(module).__name__} is in eval mode, where "
                    "no-grad-evaluation keeps no graph: it trains in eval mode. Leave no-grad-evaluation out of "
                    "oomdoc.yaml, or call model.train() before training goes on."
                )

    def unapplied(self) -> str | None:
        return None if self._applied else "no model was called in eval mode with gradients enabled"


def _needs_gradient(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if isinstance(value, Mapping):
        return any(map(_needs_gradient, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_needs_gradient, value))
    return False
