"""Five remedies on twenty jobs: the bounds of the table that `make accuracy` writes into docs/accuracy.md.

Recordings are kept in build/recordings: a second run, and one that was stopped, goes on from there.
"""

import pytest

from .test_bench_accuracy import summary

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


def test_the_table_of_predictions() -> None:
    for name, errors in summary("predictions").items():
        assert errors["pairs"] >= 10, name
        assert errors["bare"] <= 0.05, name
        assert errors["bare worst"] <= 0.15, name
        assert errors["recorded"] <= 0.01, name


def test_the_table_of_changes_made_by_hand() -> None:
    found = summary("applied")
    assert found["outside the band"] == []
