"""Jobs recorded on the virtual GPU, each once for all tests of the room."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))  # the room's helper modules are importable by name

from oomdoc.diagnosers.interface import DeviceProfile
from recordings import SCRIPTS, Recordings

__all__ = ["SCRIPTS", "Record", "record"]
Record = Callable[..., DeviceProfile]


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """`record(script, args, settings, ranks, capacity_bytes)`: rank 0 on a virtual A100, two steps."""
    return Recordings(tmp_path_factory.mktemp("virtual"))
