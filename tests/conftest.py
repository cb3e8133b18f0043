"""Fixtures that every room's tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# `make test` tries the same examples each time; HYPOTHESIS_PROFILE=search looks for new ones
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real recordings and measurements; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("OOMDOC_SHARED", ROOT.parent / "shared"))
    if not (folder / "data" / "snapshots" / "INDEX.csv").exists():
        pytest.skip("the reference recordings (../shared or $OOMDOC_SHARED) are not on this machine")
    return folder
