"""`oomdoc fix --code`: the changes of code that a diagnosis asks for, on the user's own files."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OomdocError
from .inputs import read_text

if TYPE_CHECKING:
    from ..diagnosers.interface import Diagnosis


@dataclass(frozen=True, slots=True)
class Place:
    remedy: str
    code: str  # of the finding
    title: str
    lines: tuple[tuple[Path, int], ...]  # of the user's files, the likeliest first


def changed_files(diagnosis: "Diagnosis") -> Mapping[Path, tuple[str, str]]:
    """Per file: its text, and the text with every change that can be written; says what each is for.

    Raises OomdocError where there is none.
    """
    from ..remedies.code import change
    from .output import say

    places = list(_places(diagnosis))
    if not places:
        raise OomdocError("no finding asks for a change of code that oomdoc can write in a file below this folder")
    made: dict[Path, list[tuple[int, str]]] = {}
    for place in places:
        for path, line in place.lines:
            found = change(place.remedy, read_text(path), line)
            name = f"{os.path.relpath(path)}:{line}"
            if isinstance(found, str):
                say(f"{place.code}, {place.remedy} at {name}: {place.title}")
                made.setdefault(path, []).append((line, place.remedy))
                break
            say(f"{place.code}, {place.remedy} at {name} is not written: {found.reason}")
    files = {path: (read_text(path), _with_all(read_text(path), changes)) for path, changes in made.items()}
    if not files:
        raise OomdocError("none of the changes of code could be written; `oomdoc explain` has each in words")
    return files


def _with_all(text: str, changes: list[tuple[int, str]]) -> str:
    """From the last line up, so that the lines of those before it stay right."""
    from ..remedies.code import change

    for line, remedy in sorted(set(changes), reverse=True):
        found = change(remedy, text, line)
        text = found if isinstance(found, str) else text
    return text


def _places(diagnosis: "Diagnosis") -> Iterator[Place]:
    """Of each finding, its first remedy that is a change of code."""
    from ..remedies.code import CHANGES

    for finding in diagnosis.findings:
        remedy = next((name for name in finding.remedies if name in CHANGES), None)
        lines = [(_own(each.file), each.line) for each in finding.locations]
        own = tuple((path, line) for path, line in lines if path is not None and line > 0)
        if remedy is not None and own:
            yield Place(remedy, finding.code, finding.title, own)


def _own(name: str) -> Path | None:
    """A Python file below the working directory that is there; nobody else's is touched."""
    path = Path(name).resolve()
    mine = path.suffix == ".py" and path.is_file() and path.is_relative_to(Path.cwd().resolve())
    return path if mine and "site-packages" not in path.parts else None
