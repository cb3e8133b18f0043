"""apex's fused optimizers and norms: states and saved tensors of the real ones (NVIDIA/apex, apex/optimizers/*.py)."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn


def _fused(name: str, states: Callable[[torch.Tensor, Mapping[str, Any]], dict[str, torch.Tensor]]) -> type:
    """An optimizer that updates in place and allocates only its states, at the first step of each parameter."""

    def init(self: Any, params: Any, lr: float = 1e-3, *, set_grad_none: bool = True, **options: Any) -> None:
        torch.optim.Optimizer.__init__(self, params, {"lr": lr, **options})
        self._oomdoc_set_to_none = set_grad_none
        self._overflow = torch.zeros(1, dtype=torch.int32, device="cuda")

    @torch.no_grad()
    def step(self: Any, closure: Any = None, **_: Any) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter].update(states(parameter, group))
        return loss

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        torch.optim.Optimizer.zero_grad(self, set_to_none=self._oomdoc_set_to_none and set_to_none)

    return type(name, (torch.optim.Optimizer,), {"__init__": init, "step": step, "zero_grad": zero_grad})


def _moments(parameter: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Both in float32, whatever the parameter is."""
    return {name: torch.zeros_like(parameter).float() for name in ("exp_avg", "exp_avg_sq")}


def _lamb_moments(parameter: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}


def _momentum(parameter: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {"momentum_buffer": torch.zeros_like(parameter)} if group.get("momentum") else {}


def optimizers() -> Mapping[str, object]:
    return {
        "FusedAdam": _fused("FusedAdam", _moments),
        "FusedLAMB": _fused("FusedLAMB", _lamb_moments),
        "FusedSGD": _fused("FusedSGD", _momentum),
    }


class FusedLayerNorm(nn.LayerNorm):
    """Saves mean and inverse deviation per row in float32, as torch's own fused kernel does."""


class FusedRMSNorm(nn.RMSNorm):
    """Saves the inverse root mean square per row in float32, as torch's own fused kernel does."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, **_: Any) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)


def normalization() -> Mapping[str, object]:
    both = {"FusedLayerNorm": FusedLayerNorm, "FusedRMSNorm": FusedRMSNorm}
    return both | {f"Mixed{name}": each for name, each in both.items()}
