"""Which tensors a wrapper holds is found without running the wrapper's own code where that can be."""

from typing import Any

import torch
from oomdoc.recorders.hooks import local_bytes, plain_tensors
from oomdoc.recorders.virtual.session import Session
from oomdoc.recorders.wrappers import wrapped_by


class Scaled(torch.Tensor):
    """Reads its scale to say what it holds, as torchao's float8 weights do."""

    data: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, scale: torch.Tensor) -> "Scaled":
        made: Scaled = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner, made.scale = inner, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return (["inner", "scale"] if self.scale.item() else ["inner"]), None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


class Slotted(Scaled):
    """Nothing in its dictionary, as a DTensor."""

    __slots__ = ("inner", "scale")


def test_no_value_is_read(gpu: Session) -> None:
    inner, scale = torch.rand(8, 4, device="cuda"), torch.rand(1, device="cuda")
    wrapped = Scaled(inner, scale)
    assert [each is want for each, want in zip(plain_tensors(wrapped), (inner, scale), strict=True)] == [True, True]
    assert local_bytes(wrapped) == 8 * 4 * 4 + 4
    assert wrapped.device.type == "cuda"
    assert not gpu.assumed_reads


def test_a_wrapper_without_a_dictionary_tells_itself(gpu: Session) -> None:
    inner = torch.rand(8, device="cuda")
    found = wrapped_by(Slotted(inner, torch.ones(1)))
    assert found is not None
    assert found[0] is inner
    assert wrapped_by(inner) is None
