"""The Markdown report: the whole text, and strings of a stranger's snapshot made inert."""

import os
from dataclasses import replace
from pathlib import Path

from oomdoc.diagnosers.interface import Location
from oomdoc.gates.interface import Gate
from oomdoc.reports import markdown
from oomdoc.reports.model import Report

GOLDEN = Path(__file__).parent / "golden" / "report.md"


def test_the_whole_report(report: Report, gate: Gate) -> None:
    """Compared whole; OOMDOC_GOLDEN=write renews the file, to be read in the diff."""
    text = markdown.render(replace(report, gate=gate))
    if os.environ.get("OOMDOC_GOLDEN") == "write":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_hostile_names_stay_text(report: Report) -> None:
    """HTML, links, table borders and code fences in a name of the snapshot do nothing."""
    hostile = replace(
        report.diagnosis.findings[0],
        title="<img src=x onerror=alert(1)> | [a](javascript:b) ```",
        locations=(Location("a`|\n# b.py\x1b[31m\u202e", 1, "<script>"),),
    )
    text = markdown.render(replace(report, diagnosis=replace(report.diagnosis, findings=(hostile,))))
    assert "<img" not in text.replace("\\<img", "")
    assert "\\[a\\](javascript" in text
    assert "\n# b.py" not in text
    assert not {"\x1b", "\u202e"} & set(text)
    assert all(line.count("`") % 2 == 0 for line in text.splitlines() if "b.py" in line)


def test_every_table_row_has_the_columns_of_its_header(report: Report) -> None:
    """A `|` inside a cell would shift the rest."""
    rows = [line for line in markdown.render(report).splitlines() if line.startswith("|")]
    width = 0
    for row, following in zip(rows, [*rows[1:], ""], strict=True):
        cells = row.replace("\\|", "").count("|")
        if following.startswith("|-"):
            width = cells
        assert cells == width
