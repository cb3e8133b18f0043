"""The real command line in a process of its own, as a person starts it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def oomdoc(tmp_path: Path) -> Run:
    """Runs `oomdoc ARGUMENTS` in an empty folder, with no terminal, no colour and no GPU."""

    def run(*arguments: str | Path, timeout: float = 300, **environment: str) -> "subprocess.CompletedProcess[str]":
        variables = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": "", **environment}
        return subprocess.run(
            [sys.executable, "-m", "oomdoc", *map(str, arguments)],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
