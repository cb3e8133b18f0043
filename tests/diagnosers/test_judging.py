"""The lines that a finding shows."""

from oomdoc.diagnosers.interface import Location
from oomdoc.diagnosers.judging import Held, locations

GIB = 1 << 30


def held(nbytes: int, line: int | None) -> Held:
    return Held(nbytes, 1, None if line is None else Location("train.py", line, "step"), "layers.*")


def test_a_line_that_holds_hardly_anything_is_not_shown() -> None:
    """A kilobyte beside gigabytes would send the reader to the wrong line."""
    rows = [held(8 * GIB, 7), held(4 * GIB, 7), held(GIB, 9), held(1024, 16), held(4, 17)]
    assert [each.line for each in locations(rows)] == [7, 9]


def test_bytes_without_a_line_hide_no_line() -> None:
    rows = [held(8 * GIB, None), held(1024, 16)]
    assert [each.line for each in locations(rows)] == [16]
