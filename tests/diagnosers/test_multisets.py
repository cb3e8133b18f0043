"""Copies of a size multiset, and how a size class is dealt out."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from oomdoc.diagnosers.attribution.multisets import common_factor, copies_of, deal, most_moments, name_copies, wanted
from oomdoc.diagnosers.interface import Category

P, G, S, U = Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.UNKNOWN


def test_four_copies_of_a_transformer_are_seen_without_any_frame() -> None:
    one = Counter({4096: 65, 1 << 20: 96, 4 << 20: 64, 100 << 20: 2})
    four = Counter({size: 4 * count for size, count in one.items()})
    assert common_factor(four) == 4
    assert copies_of(one, four) == 4


def test_an_odd_class_of_norm_weights_kills_a_false_factor_two() -> None:
    """Pre-norm transformers have 2L + 1 norm weights: everything else is even in a single copy."""
    assert common_factor(Counter({4096: 65, 1 << 20: 96, 4 << 20: 128, 100 << 20: 2})) == 1


def test_three_copies_are_two_moments_unless_gradients_were_there() -> None:
    assert name_copies(3, gradients_there=None, step_seen=True).order == ((P, 1), (S, 2))
    assert name_copies(3, gradients_there=True, step_seen=True).order == ((P, 1), (S, 1), (G, 1))


def test_what_the_optimizer_does_not_keep_is_another_model() -> None:
    """SGD keeps one tensor per parameter, Adam two: an average of the weights is no third moment."""
    assert name_copies(4, gradients_there=False, step_seen=True, moments=2).order == ((P, 1), (S, 2), (P, 1))
    assert name_copies(3, gradients_there=False, step_seen=True, moments=1).order == ((P, 1), (S, 1), (P, 1))


def test_the_most_that_any_optimizer_at_work_keeps() -> None:
    assert most_moments({"sgd", "adam", "optimizer"}) == 2
    assert most_moments({"optimizer"}) is None


def test_sizes_that_other_things_share_do_not_vote() -> None:
    """Activations as large as a weight: five blocks where three copies of two weights make six."""
    unit = Counter({1 << 20: 2, 4096: 3, 512: 4})
    assert copies_of(unit, Counter({1 << 20: 5, 4096: 9, 512: 12})) == 3


def test_a_second_copy_without_any_evidence_stays_unknown() -> None:
    assert name_copies(2, gradients_there=None, step_seen=False).order == ((P, 1), (U, 1))


def test_what_other_evidence_explained_is_not_dealt_again() -> None:
    copies = name_copies(4, gradients_there=True, step_seen=True)
    assert Counter(deal(6, wanted(2, copies), {G: 2})) == {P: 2, S: 4}


def test_blocks_beyond_the_copies_are_unknown() -> None:
    assert deal(3, wanted(1, name_copies(1, gradients_there=None, step_seen=False)), {}) == [P, U, U]


@given(
    count=st.integers(0, 40),
    unit=st.integers(1, 10),
    copies=st.integers(0, 6),
    there=st.sampled_from([None, True, False]),
    explained=st.dictionaries(st.sampled_from([P, G, S]), st.integers(0, 20)),
)
def test_every_block_gets_one_category(
    count: int, unit: int, copies: int, there: bool | None, explained: dict[Category, int]
) -> None:
    named = name_copies(copies, gradients_there=there, step_seen=True)
    dealt = deal(count, wanted(unit, named), explained)
    assert len(dealt) == count
    assert dealt.count(P) <= unit * max(1, copies - 2)
    assert dealt.count(S) <= 2 * unit
