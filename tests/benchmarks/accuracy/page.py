"""The page docs/accuracy.md: one part per section, each between two marks, replaced when it is made anew."""

import os
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "accuracy.md"
MIB = 2**20
GIB = 2**30


def shared() -> Path:
    """The folder of recordings and measurements; it is no part of the project."""
    folder = Path(os.environ.get("OOMDOC_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        raise SystemExit(f"the measurements are not here: $OOMDOC_SHARED names their folder (tried {folder})")
    return folder


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, text_columns: int = 1) -> str:
    """A Markdown table; columns after the first `text_columns` are numbers, set to the right."""
    rule = ["---" if column < text_columns else "---:" for column in range(len(head))]
    lines = [head, rule, *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def made() -> str:
    """When, and with what."""
    today = datetime.now(tz=timezone.utc).date().isoformat()
    return f"Made on {today} with torch {torch.__version__}, Python {platform.python_version()}."


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def standing(section: str) -> str:
    """What the part `section` of the page says now."""
    page = PAGE.read_text(encoding="utf-8")
    return page.partition(f"<!-- {section}: begin -->")[2].partition(f"<!-- {section}: end -->")[0].strip()


def put(section: str, text: str) -> None:
    """Replace the part `section` of the page."""
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{PAGE} has no place for {section}")
    PAGE.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page), encoding="utf-8")
