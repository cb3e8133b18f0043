"""The staging of a bias gradient's sum does not follow the batch."""

import numpy as np
import pytest
from oomdoc.allocator.reductions import workspace_bytes
from oomdoc.diagnosers.interface import CATEGORIES
from oomdoc.remedies.batch_scaling import with_batch
from oomdoc.remedies.whatif_timeline import BACKWARD, PHASES, Run, Timeline

A100 = {"sm_count": 108, "threads_per_sm": 2048}
ROWS, COLUMNS = 4096, 2048


def sums(rows: int) -> tuple[int, int]:
    return workspace_bytes((rows, COLUMNS), (COLUMNS, 1), (0,), accumulator_bytes=4, **A100)


def backward_of_a_layer() -> Timeline:
    """Output gradient, bias gradient, then the sum's staging and semaphores."""
    size = [4 * ROWS * COLUMNS, 4 * COLUMNS, *sums(ROWS)]
    n = len(size)
    return Timeline(
        size=np.array(size, np.int64),
        birth=np.array([0, 1, 2, 3], np.float64),
        death=np.array([8, 9, 6, 5], np.float64),
        category=np.full(n, CATEGORIES.index("temporary"), np.int8),
        phase=np.full(n, PHASES.index(BACKWARD), np.int8),
        step=np.ones(n, np.int32),
        module=np.full(n, -1, np.int32),
        stack=np.full(n, -1, np.int32),
        stream=np.zeros(n, np.uint64),
        events=10,
        modules=(),
        runs=(Run(BACKWARD, 1, 0, 10),),
    )


@pytest.mark.parametrize("parts", [2, 4, 8, 16])
def test_a_part_of_the_batch_takes_what_the_kernel_asks_for(parts: int) -> None:
    found = with_batch(backward_of_a_layer(), 1 / parts, "a100-80gb")
    wanted = sums(ROWS // parts)
    assert found.size.tolist() == [4 * ROWS * COLUMNS // parts, 4 * COLUMNS // parts, *(max(1, n) for n in wanted)]


def test_of_another_card_it_is_taken_to_follow_the_batch() -> None:
    found = with_batch(backward_of_a_layer(), 0.5, "rtx-4090")
    assert found.size[2] == sums(ROWS)[0] // 2
