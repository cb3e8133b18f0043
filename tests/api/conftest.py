"""Runs pytest on a project of its own, where the plugin is installed as pip does it: by its entry point."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
Suite = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """`suite(text, *arguments)` runs it as test_it.py, in a process of its own; nothing of this project's settings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = tmp_path / "installed" / f"oomdoc-{project['version']}.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: oomdoc\nVersion: {project['version']}\n")
    points = "\n".join(f"{name} = {place}" for name, place in project["entry-points"]["pytest11"].items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{points}\n")
    folder = tmp_path / "project"
    folder.mkdir()

    def run(text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        (folder / "test_it.py").write_text(text)
        paths = os.pathsep.join(filter(None, [str(installed.parent), os.environ.get("PYTHONPATH", "")]))
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1", "COLUMNS": "160"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
