"""mixed-precision at run time: autocast around forward and loss, and gradient scaling for float16."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from .application import Application, CannotApplyError
from .session import Session, refuse_closure

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class MixedPrecision(Application):
    """`dtype: bfloat16 | float16`."""

    name = "mixed-precision"
    options = frozenset({"dtype"})

    def __init__(self, session: Session, options: Mapping[str, Any]) -> None:
        super().__init__(session, options)
        self.dtype = DTYPES[str(options.get("dtype", "bfloat16"))]
        self._scaler = torch.amp.GradScaler(session.device_type) if self.dtype is torch.float16 else None
        self._optimizers: list[torch.optim.Optimizer] = []
        self._unscaled: set[int] = set()
        self._stepped = False  # an optimizer stepped since the scale was last adapted
        self._inside_scaler = False
        self._used = False

    def root_called(self, module: torch.nn.Module) -> None:
        if self.session.forward_open or not torch.is_grad_enabled():
            return
        if torch.is_autocast_enabled(self.session.device_type):
            raise CannotApplyError(
                "the script already runs its forward under torch.autocast: leave mixed-precision out of oomdoc.yaml."
            )
        if all(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters() if p.is_floating_point()):
            raise CannotApplyError(
                "the model's parameters are already in half precision, so autocast would change nothing: leave "
                "mixed-precision out of oomdoc.yaml."
            )

    def during_forward(self) -> AbstractContextManager[Any]:
        self._used = True
        return torch.autocast(self.session.device_type, dtype=self.dtype)

    def gradient_scale(self, loss: torch.Tensor) -> torch.Tensor | None:
        if self._scaler is None:
            return None
        if self._stepped:
            self._scaler.update()
            self._unscaled.clear()
            self._stepped = False
        return self._scaler.scale(torch.ones((), device=loss.device, dtype=torch.float32))

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        if self._scaler is not None:
            refuse_closure(optimizer, self.name)
            self._optimizers.append(optimizer)

    def before_clip(self, parameters: list[torch.Tensor]) -> None:
        """Clipping measures true gradients: unscale the optimizers that own them first."""
        if self._scaler is None:
            return
        clipped = {id(p) for p in parameters}
        for optimizer in self._optimizers:
            owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if owned & clipped and id(optimizer) not in self._unscaled:
                self._scaler.unscale_(optimizer)
                self._unscaled.add(id(optimizer))

    def around_step(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> Any:
        """Unscale, and skip the step when a gradient is not finite; the scale adapts before the next backward."""
        if self._scaler is None or self._inside_scaler or not self.session.batches.last_piece:
            return step()
        self._inside_scaler = True
        try:
            return self._scaler.step(optimizer)  # comes back here through optimizer.step()
        finally:
            self._inside_scaler = False
            self._stepped = True

    def unapplied(self) -> str | None:
        return None if self._used else "no model was called with gradients enabled"
