"""The baseline file and what moved against it."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oomdoc.diagnosers.interface import Category
from oomdoc.errors import UnreadableInputError
from oomdoc.gates import baseline, moved
from oomdoc.gates.interface import Line, LineMoved, Measured

UP = Line(category=Category.ACTIVATION, file="m.py", function="forward", code="h = self.up(x)", module="blocks.*",
          bytes=100, blocks=4)  # fmt: skip


def job(*lines: Line, small: int = 0) -> Measured:
    """Whose categories hold `small` more bytes of activations than its lines."""
    held: dict[Category, int] = {Category.ACTIVATION: small} if small else {}
    for line in lines:
        held[line.category] = held.get(line.category, 0) + line.bytes
    total = sum(held.values())
    return Measured(gpu="t4", torch="2.13.0", world_size=1, rank=0, device=0, requested_bytes=total,
                    allocated_bytes=total, reserved_bytes=None, categories=held, lines=lines)  # fmt: skip


texts = st.text(max_size=12) | st.none()
any_line = st.builds(
    Line,
    category=st.sampled_from(Category),
    file=texts,
    function=texts,
    code=st.text(min_size=1, max_size=12) | st.none(),
    module=texts,
    bytes=st.integers(0, 2**40),
    blocks=st.integers(0, 9),
)
any_job = st.builds(lambda lines, small: job(*lines, small=small), st.lists(any_line, max_size=6), st.integers(0, 99))


@given(jobs=st.dictionaries(st.text(max_size=9), any_job, max_size=3))
def test_it_reads_what_it_wrote(jobs: dict[str, Measured], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever stands in a line of code; and the order of the jobs is no matter."""
    path = tmp_path_factory.mktemp("baseline") / "b.json"
    baseline.write(path, jobs)
    assert baseline.read(path) == jobs
    assert baseline.render(dict(reversed(jobs.items()))) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no baseline"),
        ("[]", "is no baseline"),
        ('{"schema": "other/1", "jobs": {}}', "its schema is"),
        ('{"schema": "oomdoc.baseline/1", "jobs": {"a": {"gpu": 1}}}', "is no baseline"),
        ('{\n<<<<<<< ours\n "schema"', "merge conflict"),
        ("[" * 100_000, "is no baseline"),
    ],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str, told: str) -> None:
    """With what to do about a merge conflict."""
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(UnreadableInputError, match=told):
        baseline.read(path)


@given(before=any_job, after=any_job)
def test_the_rows_sum_to_the_change(before: Measured, after: Measured) -> None:
    """By category and by line alike: no byte is lost between the two tables."""
    whole = sum(after.categories.values()) - sum(before.categories.values())
    assert sum(row.bytes for row in moved.categories(before, after)) == whole
    assert sum(row.bytes for row in moved.lines(before, after)) == whole
    assert moved.lines(before, before) == ()


def only(before: Line, after: Line) -> LineMoved:
    (row,) = moved.lines(job(before), job(after))
    return row


def test_a_line_is_known_by_its_text() -> None:
    """Wherever it stands; an edited one by its function; one that moved by its text."""
    assert moved.lines(job(UP), job(replace(UP, line=99))) == ()
    assert only(UP, replace(UP, bytes=200)).bytes == 100
    edited = only(UP, replace(UP, code="h = self.wide(x)", bytes=200))
    assert (edited.bytes, edited.before) == (100, UP)
    assert only(UP, replace(UP, file="n.py", function="run", bytes=150)).bytes == 50
    elsewhere = replace(UP, file="n.py", function="run", code="y = f(x)", bytes=160)
    assert only(UP, elsewhere).bytes == 60


def test_new_and_gone() -> None:
    """Another category of another place is another line."""
    other = replace(UP, category=Category.INPUT, file="n.py", code="x = load()", module=None, bytes=7)
    rows = moved.lines(job(UP), job(other))
    assert [(row.before, row.after) for row in rows] == [(UP, None), (None, other)]
