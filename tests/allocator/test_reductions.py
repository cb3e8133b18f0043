"""Reduction workspaces against worked examples and against recordings of real GPUs."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from oomdoc.allocator.reductions import iteration, workspace_bytes

A100 = {"sm_count": 108, "threads_per_sm": 2048}
H100 = {"sm_count": 132, "threads_per_sm": 2048}


def rows_summed(rows: int, columns: int, **target: int) -> tuple[int, int]:
    return workspace_bytes((rows, columns), (columns, 1), (0,), accumulator_bytes=4, **target)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(1000, (0, 0)), (1500, (6291456, 16)), (2000, (8388608, 16))],
)
def test_sum_over_rows_as_recorded(rows: int, expected: tuple[int, int]) -> None:
    """Sums over the rows of (rows, 512) fp32 allocate what three recordings of a small language model show."""
    assert rows_summed(rows, 512, **A100) == expected


def test_full_sum_of_a_vector_splits_over_blocks() -> None:
    """2**24 floats into one: 512 threads a block, 432 blocks fill an A100, each wants at least 16 values a thread."""
    staging, semaphores = workspace_bytes((2**24,), (1,), (), accumulator_bytes=4, **A100)
    assert (staging, semaphores) == (4 * 432, 4)


def test_small_sums_stay_in_one_block() -> None:
    assert workspace_bytes((1000,), (1,), (), accumulator_bytes=4, **A100) == (0, 0)


def test_nothing_is_reduced_over_dimensions_of_size_one() -> None:
    assert workspace_bytes((1, 2**22), (2**22, 1), (0,), accumulator_bytes=4, **A100) == (0, 0)


def test_empty_input_needs_nothing() -> None:
    assert workspace_bytes((0, 512), (512, 1), (0,), accumulator_bytes=4, **A100) == (0, 0)


def test_merging_makes_layouts_equal() -> None:
    """(8, 250, 512) summed over the two outer dimensions is the sum over 2000 rows."""
    direct = workspace_bytes((8, 250, 512), (128000, 512, 1), (0, 1), accumulator_bytes=4, **A100)
    assert direct == rows_summed(2000, 512, **A100)
    it = iteration((8, 1, 250, 512), (128000, 7, 512, 1), (0, 1, 2))
    assert (it.sizes, it.strides, it.reduced) == ((2000, 512), (512, 1), 1)


def test_misaligned_offset_narrows_the_vector() -> None:
    """A view that starts at an odd element loads outputs one by one: a block of 32 x 16 threads instead of 32 x 4."""
    assert rows_summed(2**16, 512, **A100) == (4 * 512 * 108 * 4 * 32 * 4, 4 * 4)
    odd = workspace_bytes((2**16, 512), (512, 1), (0,), accumulator_bytes=4, storage_offset=1, **A100)
    assert odd == (4 * 512 * 27 * 32, 4 * 16)


def test_pairs_of_value_and_index_cost_four_times_a_float() -> None:
    one = rows_summed(2000, 512, **A100)
    pair = workspace_bytes((2000, 512), (512, 1), (0,), accumulator_bytes=16, **A100)
    assert pair == (4 * one[0], one[1])


@pytest.mark.parametrize(
    ("name", "rows", "target"),
    [("lm-fwdbwd-200-amp-complete.pickle", 2000, A100), ("lm-full-step-adamw.pickle", 2048, H100)],
)
def test_recorded_workspaces(shared: Path, name: str, rows: int, target: dict[str, int]) -> None:
    """Every reduction workspace of a real trace follows from its output: rows = batch x context of the recorded job."""
    found = 0
    for trace in _load(shared / "data" / "snapshots" / name)["device_traces"]:
        allocations = [event for event in trace if event["action"] == "alloc"]
        for output, staging, semaphores in zip(allocations, allocations[1:], allocations[2:], strict=False):
            if not (_reduces(staging) and _reduces(semaphores)):
                continue
            found += 1
            assert rows_summed(rows, output["size"] // 4, **target) == (staging["size"], semaphores["size"])
    assert found > 20


def _reduces(event: dict[str, Any]) -> bool:
    return any("gpu_reduce_kernel" in frame["name"] for frame in event["frames"])


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return _PlainUnpickler(file).load()


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> None:
        raise pickle.UnpicklingError(f"{module}.{name}")
