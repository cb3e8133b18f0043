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
    """As a DTensor; what a script hangs on it stands in its dictionary."""

    __slots__ = ("inner", "scale")


def test_no_value_is_read(gpu: Session) -> None:
    inner, scale = torch.rand(8, 4, device="cuda"), torch.rand(1, device="cuda")
    wrapped = Scaled(inner, scale)
    assert [each is want for each, want in zip(plain_tensors(wrapped), (inner, scale), strict=True)] == [True, True]
    assert local_bytes(wrapped) == 8 * 4 * 4 + 4
    assert wrapped.device.type == "cuda"
    assert not gpu.assumed_reads


def test_what_a_script_hangs_on_a_wrapper_is_not_inside(gpu: Session) -> None:
    inner, scale = torch.rand(8, device="cuda"), torch.ones(1)
    wrapped = Slotted(inner, scale)
    wrapped.main_grad = torch.rand(8, device="cuda")  # type: ignore[attr-defined]  # as Megatron does
    assert [id(each) for each in wrapped_by(wrapped) or ()] == [id(inner), id(scale)]
    assert wrapped_by(inner) is None
