"""Every cause meets every other's case: the table of docs/told-apart.md is what the causes do.

`UPDATE_DOCS=1 python -m pytest tests/diagnosers/test_confusion.py` writes it anew.
"""

import os
from pathlib import Path
from types import SimpleNamespace

from oomdoc.diagnosers.all_causes import DIAGNOSERS
from oomdoc.diagnosers.diagnose import diagnose
from oomdoc.diagnosers.interface import Finding, Severity
from oomdoc.diagnosers.profile import build

from . import made_up_more, made_up_training  # noqa: F401  (they register their jobs)
from .made_up import NEAR, OWN, Made

DOCS = Path(__file__).resolve().parents[2] / "docs" / "told-apart.md"
INTRODUCTION = """# How causes are told apart

What each cause says of each cause's own case: `1` comes first, `x` is an error or a warning beside it, `o` a note, `.`
is silent. The last column is the case that comes near without being one, where the cause has to be silent.
`oomdoc explain CODE` prints the page of a cause. Written by tests/diagnosers/test_confusion.py.

"""


def found(made: Made) -> tuple[Finding, ...]:
    return diagnose(build(made if isinstance(made, tuple) else (made,))).findings


def cell(code: str, findings: tuple[Finding, ...]) -> str:
    mine = [finding for finding in findings if finding.code == code]
    if not mine:
        return "."
    if findings[0].code == code:
        return "1"
    return "o" if all(finding.severity is Severity.NOTE for finding in mine) else "x"


def table(kit: SimpleNamespace) -> str:
    codes = sorted(DIAGNOSERS)
    name = max(len(DIAGNOSERS[code].NAME) for code in codes)
    lines = [f"{'':{name + 8}}" + " ".join(code[-2:] for code in codes) + "  near"]
    for code in codes:
        findings = found(OWN[code](kit))
        cells = "  ".join(cell(each, findings) for each in codes)
        near = cell(code, found(NEAR[code](kit)))
        lines.append(f"{code} {DIAGNOSERS[code].NAME:{name}}  {cells}  {near}")
    return "\n".join(["```", *lines, "```", ""])


def test_the_table_in_the_docs_is_what_the_causes_do(kit: SimpleNamespace) -> None:
    text = INTRODUCTION + table(kit)
    if os.environ.get("UPDATE_DOCS"):
        DOCS.write_text(text)
    assert DOCS.read_text() == text
