"""Where remedies meet an unmodified script: one patch for each torch entry point, all remedies behind it.

Entry points: `nn.Module.__call__` (root modules), `torch.autograd.backward` (which `Tensor.backward` calls),
`Optimizer.__init__` and through it each optimizer class's `step`, `zero_grad`, the learning-rate schedulers,
`GradScaler`, gradient clipping, and `DataLoader.__iter__`.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from .application import Application, CannotApplyError
from .batches import Piece, SplitIterator, SplitState, cut
from .modules import ModuleRegistry
from .patches import Patches


class Session:
    """The patches, and what the remedies share. `device_type` is where the script trains: "cuda" or "cpu"."""

    def __init__(self, *, world_size: int, device_type: str) -> None:
        self.world_size = world_size
        self.device_type = device_type
        self.rank_share: tuple[int, int] | None = None  # (rank, ranks) when each rank takes its part of a batch
        self.micro_batches = 1
        self.batches = SplitState()
        self.registry = ModuleRegistry()
        self.notes: list[str] = []
        self.in_backward = 0
        self.step_attempts = 0  # how often the script asked for an optimizer step, granted or not
        self.applications: list[Application] = []
        self.roots: dict[int, str] = {}  # ids of the root modules with parameters that were called
        self._patches = Patches()
        self._stepped_classes: set[type] = set()
        self._local = threading.local()
        self._forward: ExitStack | None = None

    def start(self, applications: Iterable[Application]) -> None:
        self.applications = list(applications)
        for application in self.applications:
            application.before_script()
        replace = self._patches.replace
        replace(torch.nn.Module, "__call__", self._call)
        replace(torch.autograd, "backward", self._backward)
        replace(Optimizer, "__init__", self._optimizer_init)
        replace(Optimizer, "zero_grad", self._zero_grad)
        replace(torch.nn.Module, "zero_grad", self._zero_grad)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            original = replace(clip_grad, name, self._clip)
            if getattr(torch.nn.utils, name) is original:
                replace(torch.nn.utils, name, functools.partial(_same_as, clip_grad, name))
        for cls in vars(lr_scheduler).values():
            if isinstance(cls, type) and cls.__module__ == lr_scheduler.__name__ and "step" in vars(cls):
                replace(cls, "step", self._only_on_last_piece)
        for name in ("unscale_", "step", "update"):
            replace(torch.amp.GradScaler, name, self._only_on_last_piece)
        replace(DataLoader, "__iter__", self._iterate)

    def stop(self) -> None:
        self.close_forward()
        for application in self.applications:
            application.undo()
        self._patches.undo()
        self.registry.close()

    def note(self, text: str) -> None:
        """Something the user should know about how the remedy acts on this script; said once."""
        if text not in self.notes:
            self.notes.append(text)

    # --- forward ---

    def _call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session, local = self, self._local

        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if session.in_backward or getattr(local, "inside", False):
                return original(module, *args, **kwargs)
            local.inside = True
            try:
                return session._call_root(original, module, args, kwargs)
            finally:
                local.inside = False

        return call

    def _call_root(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        if next(module.parameters(), None) is None:
            return original(module, *args, **kwargs)
        self.roots[id(module)] = type(module).__name__
        for application in self.applications:
            application.root_called(module)
        self._open_forward()
        try:
            with ExitStack() as around:
                if torch.is_grad_enabled():
                    for application in self.applications:
                        _enter(around, application.during_root())
                        _enter(around, application.during_call(args, kwargs))
                return original(module, *args, **kwargs)
        finally:
            if not torch.is_grad_enabled():
                self.close_forward()

    @property
    def forward_open(self) -> bool:
        """Whether a forward has begun and its backward has not."""
        return self._forward is not None

    def _open_forward(self) -> None:
        if self._forward is None:
            self._forward = ExitStack()
            for application in self.applications:
                _enter(self._forward, application.during_forward())

    def close_forward(self) -> None:
        if self._forward is not None:
            forward, self._forward = self._forward, None
            forward.close()

    # --- backward ---

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self.in_backward:
                return original(tensors, grad_tensors, *args, **kwargs)
            self.close_forward()
            grad_tensors = self._scaled(tensors, grad_tensors)
            self.in_backward += 1
            try:
                result = original(tensors, grad_tensors, *args, **kwargs)
            finally:
                self.in_backward -= 1
            for application in self.applications:
                application.after_backward()
            return result

        return backward

    def _scaled(self, tensors: Any, gradients: Any) -> Any:
        """The gradients that backward starts from, times what the remedies ask for."""
        losses = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        given = (gradients,) if gradients is None or isinstance(gradients, torch.Tensor) else tuple(gradients)
        given = given if len(given) == len(losses) else (None,) * len(losses)
        out: list[Any] = []
        for loss, gradient in zip(losses, given, strict=True):
            factors = [f for a in self.applications if (f := a.gradient_scale(loss)) is not None]
            for factor in factors:
                if gradient is None and loss.numel() != 1:
                    break  # torch's own error follows
                gradient = (torch.ones_like(loss) if gradient is None else gradient) * factor
            out.append(gradient)
        return out[0] if isinstance(tensors, torch.Tensor) else out

    # --- optimizer ---

    def _optimizer_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init(optimizer: Optimizer, params: Any, *args: Any, **kwargs: Any) -> None:
            for application in self.applications:
                params = application.rewrite_parameters(params)
            original(optimizer, params, *args, **kwargs)
            self._wrap_step(type(optimizer))
            for application in self.applications:
                application.optimizer_made(optimizer)

        return init

    def _wrap_step(self, cls: type) -> None:
        """Put the remedies around a class's `step`: those that decide outside torch's step hooks, the rest inside."""
        if cls in self._stepped_classes:
            return
        self._stepped_classes.add(cls)

        def wrap(step: Any) -> Any:
            bare = step.__wrapped__ if getattr(step, "hooked", False) and hasattr(step, "__wrapped__") else step

            @functools.wraps(bare)
            def within(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
                run: Callable[[], Any] = functools.partial(bare, optimizer, *args, **kwargs)
                for application in reversed(self.applications):
                    run = functools.partial(application.within_step, optimizer, run)
                return run()

            hooked = Optimizer.profile_hook_step(within)

            @functools.wraps(step)
            def outer(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
                self.step_attempts += 1
                self.close_forward()
                run: Callable[[], Any] = functools.partial(hooked, optimizer, *args, **kwargs)
                for application in reversed(self.applications):
                    run = functools.partial(application.around_step, optimizer, run)
                return run()

            outer.hooked = True  # type: ignore[attr-defined]
            return outer

        self._patches.replace(cls, "step", wrap)

    def _zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> None:
            if not any(getattr(application, "holds_gradients", False) for application in self.applications):
                original(owner, *args, **kwargs)

        return zero_grad

    def _only_on_last_piece(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For schedulers and a script's own GradScaler: once per batch, not once per micro-batch."""

        @functools.wraps(original)
        def once(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if self.batches.last_piece:
                return original(owner, *args, **kwargs)
            self.step_attempts += original.__qualname__ == "GradScaler.step"
            return None

        return once

    def _clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            for application in self.applications:
                tensors = application.rewrite_parameters(tensors)
            if not self.batches.last_piece:
                return torch.zeros(()) if original.__name__ == "clip_grad_norm_" else None
            for application in self.applications:
                application.before_clip(tensors)
            norm = original(tensors, *args, **kwargs)
            return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

        return clip

    # --- data ---

    def _iterate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def iterate(loader: DataLoader[Any]) -> Any:
            inner = original(loader)
            if self.micro_batches == 1 and self.rank_share is None:
                return inner
            shared = None if _of_this_rank(loader) else self.rank_share
            ranks = 1 if shared is None else shared[1]
            return SplitIterator(inner, functools.partial(self._split, shared), self.batches, ranks)

        return iterate

    def _split(self, shared: tuple[int, int] | None, batch: Any) -> list[Piece]:
        self.close_forward()
        if not (torch.is_grad_enabled() and self._training()):
            return [Piece(batch, 1, 1)]  # an evaluation sees whole batches, so that its numbers stay the same
        rank, ranks = shared or (0, 1)
        if self.micro_batches == 1 and ranks == 1:
            return [Piece(batch, 1, 1)]
        return cut(batch, rank=rank, ranks=ranks, micro_batches=self.micro_batches)

    def _training(self) -> bool:
        """Whether any whole model is in training mode (all of them are in eval mode during an evaluation)."""
        return any(top.training for top in self.registry.tops())

    # --- at the end ---

    def unapplied(self) -> tuple[str, ...]:
        return tuple(f"{a.name}: {reason}" for a in self.applications if (reason := a.unapplied()))


def _of_this_rank(loader: DataLoader[Any]) -> bool:
    """Whether each rank draws batches of its own, as with DistributedSampler or what accelerate makes of a loader."""
    return isinstance(loader.sampler, DistributedSampler) or type(loader).__module__.startswith("accelerate.")


def _enter(stack: ExitStack, context: Any) -> None:
    if context is not None:
        stack.enter_context(context)


def _same_as(owner: Any, name: str, _: Any) -> Any:
    return getattr(owner, name)


def current_piece(session: Session) -> Piece | None:
    """The piece that the script now works on, or None when it did not come from a DataLoader that was cut."""
    iterator: SplitIterator | None = session.batches.current
    return iterator.piece if iterator is not None else None


def refuse_closure(optimizer: Optimizer, remedy: str) -> None:
    """Raise for an optimizer that evaluates the model inside `step`."""
    with suppress(AttributeError):
        if isinstance(optimizer, torch.optim.LBFGS):
            raise CannotApplyError(
                f"{remedy} cannot be applied to LBFGS: its step() evaluates the model several times and needs all "
                "parameters at once. Use another optimizer, or leave this remedy out of oomdoc.yaml."
            )
