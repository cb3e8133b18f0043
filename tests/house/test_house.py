"""The house stands as CONTRIBUTING says: rooms, their direction, what may import torch, and what is shipped."""

import ast
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = None

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["configs", "snapshots", "allocator", "diagnosers", "remedies", "recorders", "gates", "reports", "api", "cli"]
SHARED_BY_ALL = {"errors", "__version__"}
MAY_IMPORT_TORCH = ("recorders", "remedies/runtime")


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imports(path: Path) -> list[tuple[int, str, int]]:
    """(relative level, dotted name, line) of every import in a file, deferred ones too."""
    found: list[tuple[int, str, int]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [base] if base else [alias.name for alias in node.names]
            found += [(node.level, name, node.lineno) for name in names]
    return found


def target_room(path: Path, level: int, name: str) -> str | None:
    """The room (or root module) that an import of `path` reaches, None for other packages."""
    if level == 0:
        return name.split(".")[1] if name.startswith("oomdoc.") else None
    package = path.relative_to(ROOT).parts[:-1]
    base = list(package[: len(package) - (level - 1)])
    whole = [*base, *name.split(".")] if name else base
    return whole[0]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_rooms_above_it(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    allowed = {*ROOMS[: ROOMS.index(room) + 1], *SHARED_BY_ALL}
    for level, name, line in imports(path):
        target = target_room(path, level, name)
        assert target is None or target in allowed, f"{path.relative_to(ROOT)}:{line} imports {target}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_is_imported_only_where_something_runs(path: Path) -> None:
    where = path.relative_to(ROOT).as_posix()
    if where.startswith(MAY_IMPORT_TORCH):
        return
    for level, name, line in imports(path):
        assert level or name.split(".")[0] != "torch", f"{where}:{line} imports torch"


def test_the_import_reader_sees_both_kinds() -> None:
    """The two tests above can fail: their reader finds relative, absolute and deferred imports."""
    inside = ROOT / "snapshots" / "reader.py"
    assert target_room(inside, 2, "diagnosers.interface") == "diagnosers"
    assert target_room(inside, 1, "model") == "snapshots"
    assert target_room(inside, 0, "oomdoc.cli.main") == "cli"
    assert target_room(inside, 0, "numpy") is None
    assert (0, "ast", 3) in imports(Path(__file__))


@pytest.mark.skipif(tomllib is None, reason="tomllib is in Python 3.11 and newer")
def test_every_folder_with_code_is_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(project["tool"]["setuptools"]["packages"])
    folders = {"oomdoc"} | {
        ".".join(("oomdoc", *path.parent.relative_to(ROOT).parts))
        for room in ROOMS
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert listed == folders


@pytest.mark.skipif(tomllib is None, reason="tomllib is in Python 3.11 and newer")
def test_every_data_file_is_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = project["tool"]["setuptools"]["package-data"]
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()):
        if path.suffix in {".py", ".pyc"}:
            continue
        folders = path.parent.relative_to(ROOT).parts  # a folder of data alone belongs to the package above it
        patterns = [
            "/".join((*folders[:depth], pattern))
            for depth in range(len(folders) + 1)
            for pattern in data.get(".".join(("oomdoc", *folders[:depth])), [])
        ]
        found = any(path.relative_to(ROOT).match(pattern) for pattern in patterns)
        assert found, f"{path.relative_to(ROOT)} is in no package-data"
