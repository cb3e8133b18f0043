"""Random generators of the virtual GPU: they carry a seed and an offset, and draw nothing.

Ops on virtual tensors compute no values, so a CPU generator stands where the schema wants one; its state looks as on
CUDA (16 bytes: seed and offset, aten/src/ATen/cuda/CUDAGeneratorImpl.cpp), so that saved states have CUDA's size.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .face import canonical_device
from .patching import patches

if TYPE_CHECKING:
    from .session import Session

_RAW_GENERATOR: Any = torch.Generator
DEFAULT_SEED = 67280421310721  # c10::detail::default_rng_seed_val
STATE_BYTES = 16


class CudaGenerator(torch.Generator):
    """A generator whose device is `cuda:N`."""

    def __new__(cls, device: Any = "cuda") -> "CudaGenerator":
        made: CudaGenerator = super().__new__(cls)
        made._device = canonical_device(device)
        made._seed, made._offset = DEFAULT_SEED, 0
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        """Everything was said to `__new__`."""

    _device: torch.device
    _seed: int
    _offset: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute of the C class
        return self._device

    def manual_seed(self, seed: int) -> "CudaGenerator":
        self._seed, self._offset = int(seed) & (1 << 64) - 1, 0
        return self

    def seed(self) -> int:
        self.manual_seed(random.SystemRandom().getrandbits(53))
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> "CudaGenerator":
        self._offset = int(offset)
        return self

    def get_state(self) -> torch.Tensor:
        words = self._seed.to_bytes(8, "little") + self._offset.to_bytes(8, "little")
        return torch.frombuffer(bytearray(words), dtype=torch.uint8).clone()

    def set_state(self, new_state: torch.Tensor) -> "CudaGenerator":
        if new_state.numel() != STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
        words = bytes(new_state.tolist())
        self._seed, self._offset = int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")
        return self

    def clone_state(self) -> "CudaGenerator":
        twin = CudaGenerator(self._device)
        twin.set_state(self.get_state())
        return twin

    def graphsafe_get_state(self) -> "CudaGenerator":
        return self

    def graphsafe_set_state(self, state: torch.Generator) -> "CudaGenerator":
        return self.set_state(state.get_state())


class _AnyGenerator(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RAW_GENERATOR)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _RAW_GENERATOR)

    def __call__(cls, device: Any = "cpu") -> Any:
        target = canonical_device(device)
        return CudaGenerator(target) if target.type == "cuda" else _RAW_GENERATOR(device=target)


class Generator(metaclass=_AnyGenerator):
    """Stands for `torch.Generator`: ours on CUDA, torch's own elsewhere."""


Generator.__module__, Generator.__qualname__ = "torch", "Generator"


@contextmanager
def install(session: "Session") -> Iterator[None]:
    """torch.Generator and torch.cuda's default generators for the time of the block."""
    with patches() as held:
        held.swap_everywhere([(torch.Generator, Generator)])
        held.set(
            torch.cuda,
            "default_generators",
            tuple(CudaGenerator(torch.device("cuda", index)) for index in range(session.device.count)),
        )
        yield
