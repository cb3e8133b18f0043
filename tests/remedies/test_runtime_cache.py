"""Checkpointing a model whose blocks fill a key-value cache in forward."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from oomdoc.remedies.interface import Setting
from oomdoc.remedies.runtime.application import CannotApplyError
from oomdoc.remedies.runtime.install import install

CHECKPOINTED = (Setting(name="activation-checkpointing", options={"modules": ["Block"]}),)


class Cache:
    """What transformers' caches have in common."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def update(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        return torch.cat(self.seen, dim=1)

    def get_seq_length(self) -> int:
        return sum(x.shape[1] for x in self.seen)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, past: Cache | None = None, use_cache: bool = False) -> torch.Tensor:
        assert past is None or use_cache
        keys = self.layer(x) if past is None else past.update(self.layer(x))
        return x + torch.softmax(x @ keys.mT, -1) @ keys


class Model(torch.nn.Module):
    """A decoder whose own configuration has the cache on, as inside an encoder-decoder model."""

    def __init__(self, call: Callable[[Block, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.decoder = torch.nn.Identity()
        self.decoder.config = SimpleNamespace(use_cache=True)
        self.decoder.supports_gradient_checkpointing = True
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return x.square().mean()


def _gradients(model: Model) -> list[torch.Tensor]:
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model(torch.randn(2, 5, 8)).backward()
    return [parameter.grad for parameter in model.parameters()]


def by_name(block: Block, x: torch.Tensor) -> torch.Tensor:
    return block(x, past=Cache(), use_cache=True)


def by_place(block: Block, x: torch.Tensor) -> torch.Tensor:
    return block(x, Cache(), True)


def test_blocks_run_without_the_cache_and_the_gradients_are_the_same() -> None:
    plain = _gradients(Model(by_name))
    with install(CHECKPOINTED, world_size=1, device_type="cpu") as applied:
        model = Model(by_name)
        changed = _gradients(model)
        assert applied.notes == ("Block runs without the key-value cache that it is called with",)
    assert not model.decoder.config.use_cache
    assert all(torch.equal(a, b) for a, b in zip(plain, changed, strict=True))


def test_a_cache_that_cannot_be_left_out_is_refused_before_any_gradient() -> None:
    with install(CHECKPOINTED, world_size=1, device_type="cpu"):
        model = Model(by_place)
        with pytest.raises(CannotApplyError, match="use_cache=False"):
            _gradients(model)
        assert all(parameter.grad is None for parameter in model.parameters())
