"""Copies of the parameters in other pieces than the parameters: told by bytes, to the byte."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from oomdoc.diagnosers.attribution.gradients import merged
from oomdoc.diagnosers.attribution.multisets import split_copies
from oomdoc.diagnosers.attribution.pieces import buckets, flattened

MIB = 1 << 20


def test_weights_of_an_rnn_in_one_buffer_have_their_moments_apart() -> None:
    """One buffer of 14 MiB for four weights; Adam keeps two tensors for each of the four."""
    unit = {14 * MIB: 1, 10 * MIB: 1}
    blocks = Counter({14 * MIB: 1, 10 * MIB: 3, 4 * MIB: 6, 2 * MIB: 2})
    found = flattened(unit, blocks, copies=3)
    assert found is not None
    assert (found.together, found.apart) == ({14 * MIB}, {4 * MIB, 2 * MIB})


def test_a_byte_more_or_less_is_something_else() -> None:
    assert flattened({14 * MIB: 1, 10 * MIB: 1}, Counter({14 * MIB: 1, 10 * MIB: 3, 4 * MIB: 6}), copies=3) is None


def test_buckets_of_ddp_are_what_makes_one_copy_more() -> None:
    parameters = Counter({9 * MIB: 12, 2 * MIB: 25, 90 * MIB: 1})
    blocks = Counter({size: 3 * count for size, count in parameters.items()}) + Counter({28 * MIB: 6, 80 * MIB: 1})
    assert buckets(blocks, 3) == {28 * MIB, 80 * MIB}
    assert buckets(Counter({size: 3 * count for size, count in parameters.items()}), 3) == frozenset()


@given(st.dictionaries(st.integers(1, 50).map(lambda n: n * MIB), st.integers(1, 6), min_size=1, max_size=6))
def test_what_is_chosen_as_buckets_comes_to_one_copy(parameters: dict[int, int]) -> None:
    """Whatever is chosen, its bytes are those of a copy of the rest."""
    total = sum(size * count for size, count in parameters.items())
    blocks = Counter({size: 3 * count for size, count in parameters.items()}) + Counter({total: 1})
    chosen = buckets(blocks, 3)
    held = sum(size * blocks[size] for size in chosen)
    rest = sum(size * count for size, count in blocks.items()) - held
    assert not chosen or abs(3 * held - rest) <= 0.03 * held


def test_reductions_of_whole_units_have_the_bytes_of_the_parameters() -> None:
    """FSDP2: one gradient of 33 MiB for 16 parameters; parameters and two moments are 48 blocks."""
    assert split_copies(Counter({2 * MIB: 48}), 32 * MIB) == 3
    assert split_copies(Counter({2 * MIB: 48}), 20 * MIB) == 0


def test_half_of_a_backward_is_the_same_model_and_another_model_is_not() -> None:
    whole = Counter({8: 8, 4: 2})
    assert merged([whole, Counter({8: 4})]) == whole
    assert merged([whole, Counter({8: 1, 6: 3, 2: 1})]) == Counter({8: 9, 4: 2, 6: 3, 2: 1})
