"""When a sharded block's backward has ended, on timelines that can be counted by hand."""

import numpy as np
from oomdoc.diagnosers.interface import CATEGORIES, Category
from oomdoc.remedies.fsdp import ends_of_backward
from oomdoc.remedies.passes import BlockPass, Iteration
from oomdoc.remedies.whatif_timeline import BACKWARD, FORWARD, PHASES, Run, Timeline

ITERATION = Iteration(start=0.0, backward_start=10.0, end=30.0, step=1)
NONE = np.zeros(0, np.intp)


def _ends(made: list[tuple[str, float]]) -> list[float]:
    """Of blocks `b.0` and `b.1`, whose backwards begin at 20 and at 10; `made`: modules and births in backward."""
    modules = tuple(dict.fromkeys(module for module, _ in made))
    count = len(made)
    timeline = Timeline(
        size=np.full(count, 8, np.int64),
        birth=np.array([birth for _, birth in made]),
        death=np.full(count, 30.0),
        category=np.full(count, CATEGORIES.index(Category.TEMPORARY.value), np.int8),
        phase=np.full(count, PHASES.index(BACKWARD), np.int8),
        step=np.ones(count, np.int32),
        module=np.array([modules.index(module) for module, _ in made], np.int32),
        stack=np.full(count, -1, np.int32),
        stream=np.zeros(count, np.uint64),
        events=30,
        modules=modules,
        runs=(Run(FORWARD, 1, 0, 10), Run(BACKWARD, 1, 10, 30)),
    )
    passes = [
        BlockPass(
            path=f"b.{i}", iteration=ITERATION, rows=NONE, start=float(i), end=float(i + 1), saved=NONE, output=-1,
            backward_start=start,
        )
        for i, start in enumerate((20.0, 10.0))
    ]  # fmt: skip
    return ends_of_backward(timeline, passes, ITERATION)


def test_a_blocks_backward_ends_when_that_of_the_block_before_it_begins() -> None:
    assert _ends([("b.1", 11.0), ("b.1.norm", 19.0), ("b.0", 21.0)]) == [30.0, 20.0]


def test_what_lies_between_two_stages_runs_when_the_block_is_done() -> None:
    """The layer that halves the resolution, and the embedding below the first block."""
    assert _ends([("b.1", 11.0), ("down", 15.0), ("down", 17.0), ("b.0", 21.0), ("embed", 27.0)]) == [27.0, 15.0]
