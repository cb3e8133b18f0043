"""The picture of the terminal report: whole, well-formed, and it loads nothing."""

import xml.etree.ElementTree as ET
from dataclasses import replace

from oomdoc.reports import svg
from oomdoc.reports.model import Report


def test_it_is_well_formed_and_loads_nothing(report: Report) -> None:
    text = svg.render(report)
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    assert "@font-face" not in text
    assert "url(http" not in text
    written = "".join(root.itertext()).replace("\xa0", " ")
    assert report.diagnosis.findings[0].code in written


def test_hostile_names_stay_text(report: Report) -> None:
    hostile = replace(report.diagnosis.findings[0], title="</text><script>alert(1)</script>")
    text = svg.render(replace(report, diagnosis=replace(report.diagnosis, findings=(hostile,))))
    assert "<script" not in text
    ET.fromstring(text)
