"""The user's source files, as far as they can be read here."""

import re
from functools import lru_cache
from pathlib import Path

_LARGEST_BYTES = 4 * 2**20
_OF_PACKAGES = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")


@lru_cache(maxsize=256)
def source_lines(file: str) -> tuple[str, ...] | None:
    """The lines of a Python file of at most 4 MiB; None for anything else."""
    path = Path(file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            return None
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except (OSError, ValueError):
        return None


def code_at(file: str, line: int) -> str | None:
    """The text of a line without its indentation; None where it cannot be read, or is blank."""
    lines = source_lines(file)
    if lines is None or not 0 < line <= len(lines):
        return None
    return lines[line - 1].strip() or None


def short_path(file: str) -> str:
    """Relative to the current folder where it lies inside it; from the package on in site-packages."""
    path = Path(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        pass
    return _OF_PACKAGES.sub("", file)


def stable_path(file: str) -> str:
    """The same on every machine that has the code: relative to the current folder, or from site-packages on."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix()
    for folder in ("site-packages", "dist-packages"):
        if folder in path.parts:
            return "/".join(path.parts[path.parts.index(folder) :])
    return path.as_posix()
