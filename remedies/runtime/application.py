"""What a remedy can do while a script runs: one class per remedy, every method optional."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ...errors import OomdocError

if TYPE_CHECKING:
    from .session import Session


class CannotApplyError(OomdocError):
    """The remedy does not fit this script; the message says why and what to do instead."""


class Application:
    """One remedy at work. The methods are called by `session.Session`, in the order of the settings."""

    name = ""
    options: frozenset[str] = frozenset()  # the keys of its entry in oomdoc.yaml

    def __init__(self, session: "Session", options: Mapping[str, Any]) -> None:
        self.session = session

    def before_script(self) -> None:
        """Called once, before the script's first line."""

    def rewrite_parameters(self, parameters: Any) -> Any:
        """Called with what the script hands to an optimizer; returns what the optimizer gets."""
        return parameters

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after the constructor of every optimizer."""

    def root_called(self, module: torch.nn.Module) -> None:
        """Called before each call of a module that is not called from within another one."""

    def during_root(self) -> AbstractContextManager[Any] | None:
        """A context around the call of a root module, with gradients enabled."""
        return None

    def during_call(self, args: Any, kwargs: Any) -> AbstractContextManager[Any] | None:
        """The same, where it depends on what the module is called with."""
        return None

    def during_forward(self) -> AbstractContextManager[Any] | None:
        """A context from the first call of a root module until backward begins: the loss is inside."""
        return None

    def gradient_scale(self, loss: torch.Tensor) -> "float | torch.Tensor | None":
        """A factor for the gradient that backward starts from."""
        return None

    def after_backward(self) -> None:
        """Called when a backward of the script has ended."""

    def before_clip(self, parameters: list[torch.Tensor]) -> None:
        """Called before the script clips the gradients of `parameters`."""

    def around_step(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> Any:
        """Called for `optimizer.step(...)` as the script calls it; the torch hooks of the step are inside `step`."""
        return step()

    def within_step(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> Any:
        """Called inside those hooks, around the optimizer's own code."""
        return step()

    def undo(self) -> None:
        """Take back what the remedy itself replaced."""

    def unapplied(self) -> str | None:
        """At the end: why the remedy never took effect, or None when it did."""
        return None
