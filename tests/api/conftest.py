"""Runs pytest on a project of its own, where the plugin is installed as pip does it: by its entry point."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
Suite = Callable[..., pytest.RunResult]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """`suite(text, *arguments)` runs it as test_it.py, in a process of its own; nothing of this project's settings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = pytester.path / "installed" / f"oomdoc-{project['version']}.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: oomdoc\nVersion: {project['version']}\n")
    points = "\n".join(f"{name} = {place}" for name, place in project["entry-points"]["pytest11"].items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{points}\n")
    paths = filter(None, [str(installed.parent), os.environ.get("PYTHONPATH", "")])
    for name, value in {"PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1", "COLUMNS": "160"}.items():
        monkeypatch.setenv(name, value)

    def run(text: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=text)
        return pytester.runpytest_subprocess("-rA", *arguments, timeout=300)

    return run
