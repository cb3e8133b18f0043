"""Types under autocast that follow from what an operation reads, on timelines that can be counted by hand."""

from dataclasses import replace

import numpy as np
import pytest
from oomdoc.diagnosers.interface import CATEGORIES, Category
from oomdoc.remedies.autocast_kinds import Kind
from oomdoc.remedies.autocast_types import resolved
from oomdoc.remedies.mixed_precision import copied_results
from oomdoc.remedies.passes import accumulates, iterations
from oomdoc.remedies.whatif_timeline import BACKWARD, FORWARD, OPTIMIZER, PHASES, Run, Timeline

BACKWARD_START, EVENTS = 50.0, 100
SAVED = 90.0


def _timeline(rows: list[tuple[str, int, float]]) -> Timeline:
    """Rows (module, bytes, death) of one forward, made one after the other."""
    modules = tuple(dict.fromkeys(module for module, _, _ in rows))
    count = len(rows)
    return Timeline(
        size=np.array([size for _, size, _ in rows], np.int64),
        birth=np.arange(1, count + 1, dtype=np.float64),
        death=np.array([death for _, _, death in rows], np.float64),
        category=np.full(count, CATEGORIES.index(Category.ACTIVATION.value), np.int8),
        phase=np.full(count, PHASES.index(FORWARD), np.int8),
        step=np.ones(count, np.int32),
        module=np.array([modules.index(module) for module, _, _ in rows], np.int32),
        stack=np.full(count, -1, np.int32),
        stream=np.zeros(count, np.uint64),
        events=EVENTS,
        modules=modules,
        runs=(Run(FORWARD, 1, 0, BACKWARD_START), Run(BACKWARD, 1, BACKWARD_START, EVENTS)),
    )


def _types(rows: list[tuple[str, int, float]], kinds: list[Kind]) -> list[Kind]:
    found = resolved(_timeline(rows), np.array(kinds, np.int8))
    return [Kind(each) for each in found.tolist()]


def test_an_activation_has_the_type_of_the_norm_or_the_product_before_it() -> None:
    """silu(norm(x)) is float32, and gelu(linear(x)) is not."""
    rows = [("b.norm", 64, SAVED), ("b", 64, SAVED), ("b.conv", 256, SAVED), ("b", 256, SAVED)]
    kinds = [Kind.NORM, Kind.FOLLOWS, Kind.PRODUCT, Kind.FOLLOWS]
    assert _types(rows, kinds) == [Kind.NORM, Kind.KEEPS, Kind.PRODUCT, Kind.HALVES]


@pytest.mark.parametrize(("stream", "sum_"), [(Kind.PRODUCT, Kind.HALVES), (Kind.KEEPS, Kind.KEEPS)])
def test_a_residual_stream_has_the_type_that_enters_it(stream: Kind, sum_: Kind) -> None:
    """After a convolution (a UNet) it is half, after an embedding (a language model) float32."""
    rows = [("stem", 64, SAVED), ("b.norm", 64, SAVED), ("b.up", 256, SAVED), ("b.down", 64, 6.0), ("b", 64, SAVED)]
    kinds = [stream, Kind.NORM, Kind.PRODUCT, Kind.PRODUCT, Kind.SUMS]
    assert _types(rows, kinds)[-1] == sum_


def test_a_shortcut_through_a_product_makes_a_half_sum() -> None:
    rows = [("stem", 32, SAVED), ("b.norm", 32, SAVED), ("b.conv", 64, 6.0), ("b.skip", 64, 6.0), ("b", 64, SAVED)]
    kinds = [Kind.KEEPS, Kind.NORM, Kind.PRODUCT, Kind.PRODUCT, Kind.SUMS]
    assert _types(rows, kinds)[-1] == Kind.HALVES


def test_what_is_added_to_a_parameter_is_float32() -> None:
    """Positions: one operand is in sight."""
    rows = [("e.patches", 64, 3.0), ("e", 64, SAVED)]
    assert _types(rows, [Kind.PRODUCT, Kind.SUMS])[-1] == Kind.KEEPS


def test_what_is_joined_has_the_wider_type() -> None:
    rows = [("down", 32, SAVED), ("up", 64, 5.0), ("m", 96, SAVED)]
    assert _types(rows, [Kind.PRODUCT, Kind.KEEPS, Kind.JOINS])[-1] == Kind.KEEPS
    assert _types(rows, [Kind.PRODUCT, Kind.HALVES, Kind.JOINS])[-1] == Kind.HALVES


def test_a_mask_beside_a_float32_dropout_is_no_float() -> None:
    rows = [("e", 64, 5.0), ("drop", 64, SAVED), ("drop", 16, SAVED)]
    assert _types(rows, [Kind.KEEPS, Kind.FOLLOWS, Kind.FOLLOWS]) == [Kind.KEEPS, Kind.KEEPS, Kind.MASK]


def test_the_copy_of_an_attentions_result_goes_and_that_of_another_result_does_not() -> None:
    rows = [("a", 48, SAVED), ("a", 16, SAVED), ("a", 1, SAVED), ("a", 16, SAVED), ("a", 16, SAVED)]
    kinds = np.array([Kind.OPEN_HALF, Kind.ATTENTION, Kind.ATTENTION, Kind.OPEN_HALF, Kind.OPEN_HALF], np.int8)
    assert copied_results(_timeline(rows), kinds).tolist() == [False, False, False, True, False]


def test_a_second_step_that_allocates_nothing_is_a_step() -> None:
    """SGD's state exists after the first: no run of the optimizer is between the second backward and the end."""
    runs = [(FORWARD, 1), (BACKWARD, 1), (OPTIMIZER, 1), (FORWARD, 2), (BACKWARD, 2)]
    made = replace(_timeline([("a", 1, 2.0)]), runs=tuple(Run(p, s, i, i + 1) for i, (p, s) in enumerate(runs)))
    assert not accumulates(iterations(made))
    again = replace(made, runs=tuple(replace(run, step=1) for run in made.runs))
    assert accumulates(iterations(again))
