"""A small virtual GPU for tests: the real session, a made-up card."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the room's helper modules

torch = pytest.importorskip("torch")

from oomdoc.recorders.virtual.device import GpuTarget  # noqa: E402  (torch may be absent)
from oomdoc.recorders.virtual.session import Session, virtual_session  # noqa: E402

MIB = 1 << 20
A100_LIKE = GpuTarget(
    name="test-gpu",
    total_bytes=40960 * MIB,
    context_bytes=500 * MIB,
    sm_count=108,
    threads_per_sm=2048,
    compute_capability=(8, 0),
)


@pytest.fixture
def gpu() -> Iterator[Session]:
    """A virtual A100-like card for the test's duration."""
    with virtual_session(A100_LIKE) as session:
        yield session


@pytest.fixture
def card() -> GpuTarget:
    """What `gpu` pretends to be."""
    return A100_LIKE


@pytest.fixture
def oomdoc(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs `oomdoc ARGUMENTS` in an empty folder."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        variables = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "oomdoc", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)

    return run
