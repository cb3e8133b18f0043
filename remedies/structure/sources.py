"""The source line behind a frame: of the file it names, else of the same library as it is installed here."""

import linecache
import re
import sys
from functools import lru_cache
from pathlib import Path

from ...snapshots.model import Frame

_LIBRARY = re.compile(r"(?:site-packages|dist-packages)/(.+\.py)$|/((?:torch|transformers)/.+\.py)$")
_DEF = re.compile(r"(\s*)(?:async\s+)?def\s+(\w+)")


def source_line(frame: Frame) -> str:
    """Its text, empty where no file is here that has the frame's function at that line."""
    path = located(frame.filename, frame.line, frame.name)
    return linecache.getline(path, frame.line) if path else ""


@lru_cache(maxsize=8192)
def located(filename: str, line: int, function: str) -> str | None:
    """A file that can be read. One of another installation counts if `function` is what surrounds that line in it."""
    if line <= 0:
        return None
    if linecache.getlines(filename):
        return filename
    match = _LIBRARY.search(filename.replace("\\", "/"))
    if match is None:
        return None
    for folder in sys.path:
        path = Path(folder) / (match.group(1) or match.group(2))
        if path.is_file() and _surrounding(str(path), line) == function:
            return str(path)
    return None


def _surrounding(filename: str, line: int) -> str | None:
    """The function that a line is in."""
    text = linecache.getlines(filename)
    if line > len(text):
        return None
    indent = len(text[line - 1]) - len(text[line - 1].lstrip())
    for above in reversed(text[: line - 1]):
        match = _DEF.match(above)
        if match and len(match.group(1)) < indent:
            return match.group(2)
    return None
