"""Fixtures that every room's tests share."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real recordings and measurements; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("OOMDOC_SHARED", ROOT.parent / "shared"))
    if not (folder / "data" / "snapshots" / "INDEX.csv").exists():
        pytest.skip("the reference recordings (../shared or $OOMDOC_SHARED) are not on this machine")
    return folder
