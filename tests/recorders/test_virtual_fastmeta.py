"""Meta kernels: C++ where torch has them, remembered answers where not, and everything put back afterwards."""

import sys

import pytest
import torch
from oomdoc.recorders.virtual import fastmeta
from oomdoc.recorders.virtual.fastmeta import Memo, fast_meta_kernels


def python_calls_of_an_add() -> int:
    """Python functions that one addition of meta tensors goes through: none where C++ answers."""
    x, calls = torch.empty(4, 4, device="meta"), 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    x + x
    sys.setprofile(count)
    try:
        x + x
    finally:
        sys.setprofile(None)
    return calls


def test_cpp_answers_for_a_time_with_the_same_shapes() -> None:
    stock, expected = python_calls_of_an_add(), fastmeta._self_test()
    assert stock > 0
    with fast_meta_kernels():
        assert python_calls_of_an_add() == 0
        assert fastmeta._self_test() == expected
    assert python_calls_of_an_add() == stock
    assert fastmeta._self_test() == expected


def test_a_failed_self_test_keeps_torchs_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([[1], [2]])
    monkeypatch.setattr(fastmeta, "_self_test", lambda: next(answers))
    with fast_meta_kernels() as memo:
        assert python_calls_of_an_add() > 0
        assert "aten::add.Tensor" in memo.slow


def test_the_memo_answers_like_the_kernel_and_never_aliases() -> None:
    memo = Memo(frozenset(("aten::native_layer_norm",)))
    norm = torch.ops.aten.native_layer_norm.default
    x, weight = torch.empty(4, 8, 16, device="meta", dtype=torch.bfloat16), torch.empty(16, device="meta")
    first = memo(norm, (x, [16], weight, weight, 1e-5), {})
    second = memo(norm, (x, [16], weight, weight, 1e-5), {})
    for a, b in zip(first, second, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert a.untyped_storage()._cdata != b.untyped_storage()._cdata


def test_the_memo_tells_arguments_apart() -> None:
    memo = Memo(frozenset(("aten::flip",)))
    flip = torch.ops.aten.flip.default
    assert memo(flip, (torch.empty(2, 3, device="meta"), [0]), {}).shape == (2, 3)
    assert memo(flip, (torch.empty(3, 2, device="meta"), [0]), {}).shape == (3, 2)
    assert (
        memo(flip, (torch.empty(3, 2, device="meta").t(), [0]), {}).stride()
        == flip(torch.empty(3, 2, device="meta").t(), [0]).stride()
    )


def test_an_output_that_is_an_input_is_not_remembered() -> None:
    memo = Memo(frozenset())
    calls: list[int] = []

    def identity(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x

    x = torch.empty(2, device="meta")
    assert memo(identity, (x,), {}) is x
    assert memo(identity, (x,), {}) is x
    assert len(calls) == 2
