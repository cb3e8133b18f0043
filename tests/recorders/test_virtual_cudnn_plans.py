"""The installed cuDNN, asked on a machine without a GPU; skipped where there is none (a CPU build of torch)."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from oomdoc.recorders.virtual import cudnn_plans
from oomdoc.recorders.virtual.cudnn_plans import Cudnn, Direction, Dtype, Note, Problem, installed, strides

MIB = 1 << 20


@pytest.fixture(scope="module")
def ampere() -> Cudnn:
    library = installed((8, 0))
    if library is None:
        pytest.skip("no cuDNN from 9.8 on is installed")
    return library


def problem(direction: Direction, dtype: Dtype, *, last: bool, filters: int = 3) -> Problem:
    x, pad = (64, 64, 56, 56), (filters // 2,) * 2
    return Problem(direction, x, (64, 64, filters, filters), x, (1, 1), pad, (1, 1), dtype, last)


@pytest.mark.parametrize("direction", ["forward", "data", "filter"])
@pytest.mark.parametrize(("dtype", "size"), [(Dtype.FLOAT, 4), (Dtype.HALF, 2), (Dtype.BFLOAT16, 2)])
def test_channels_first_tensors_are_converted_in_the_workspace(
    ampere: Cudnn, direction: Direction, dtype: Dtype, size: int
) -> None:
    """At least the input or the output, at most both and the weight's partial sums, in the first choice."""
    first = ampere.plans(problem(direction, dtype, last=False))[0]
    one = 64 * 64 * 56 * 56 * size
    assert one < first.workspace < 2 * one + 16 * MIB
    assert Note.TENSOR_CORE in first.notes


def test_halves_that_are_channels_last_need_none(ampere: Cudnn) -> None:
    assert ampere.plans(problem("forward", Dtype.HALF, last=True))[0].workspace == 0


def test_there_is_a_plan_without_workspace(ampere: Cudnn) -> None:
    for direction in ("forward", "data", "filter"):
        assert min(plan.workspace for plan in ampere.plans(problem(direction, Dtype.FLOAT, last=False))) == 0


def test_volumes_groups_and_doubles_are_answered(ampere: Cudnn) -> None:
    volume = Problem(
        "forward", (2, 16, 8, 8, 8), (32, 16, 3, 3, 3), (2, 32, 8, 8, 8), *((one,) * 3 for one in (1, 1, 1)),
        Dtype.FLOAT, True,
    )  # fmt: skip
    grouped = Problem("data", (2, 64, 8, 8), (64, 2, 3, 3), (2, 64, 8, 8), (1, 1), (1, 1), (1, 1), Dtype.HALF, True)
    assert all(ampere.plans(each) for each in (volume, grouped, problem("filter", Dtype.DOUBLE, last=False)))


def test_nonsense_has_no_plan(ampere: Cudnn) -> None:
    wrong = Problem("forward", (1, 3, 8, 8), (4, 5, 3, 3), (1, 4, 8, 8), (1, 1), (1, 1), (1, 1), Dtype.FLOAT, False)
    assert ampere.plans(wrong) == ()


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_every_architecture_is_answered_for(ampere: Cudnn, capability: tuple[int, int]) -> None:
    library = installed(capability)
    assert library is not None
    assert library.plans(problem("forward", Dtype.HALF, last=True))


def test_strides() -> None:
    assert strides((2, 3, 4, 5), channels_last=False) == (60, 20, 5, 1)
    assert strides((2, 3, 4, 5), channels_last=True) == (60, 1, 15, 3)


def test_a_library_that_ends_its_process_ends_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """cuDNN aborts where it does not find the cuBLAS that it was made for."""
    (tmp_path / "asks.py").write_text("import os\nos.abort()\n")
    monkeypatch.setattr(cudnn_plans, "__file__", str(tmp_path / "asks.py"))
    monkeypatch.setattr(cudnn_plans, "_found", lambda: (tmp_path, tmp_path))
    cudnn_plans._library.cache_clear()
    try:
        assert cudnn_plans._library() is None
    finally:
        cudnn_plans._library.cache_clear()
