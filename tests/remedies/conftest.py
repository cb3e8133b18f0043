"""Jobs recorded on the virtual GPU, each once for all tests of the room."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))  # the room's helper modules are importable by name

from oomdoc.diagnosers.interface import DeviceProfile
from oomdoc.diagnosers.profile import build
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.remedies.config_file import ConfigFile, write
from oomdoc.remedies.interface import Setting
from oomdoc.snapshots.reader import load

SCRIPTS = Path(__file__).parent / "scripts"
NO_LIMIT = 1 << 42

Record = Callable[..., DeviceProfile]


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """`record(script, args, settings, ranks, capacity_bytes)`: rank 0 on a virtual A100, two steps."""
    return recorded(tmp_path_factory)


def recorded(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """What the fixture `record` gives, for the benchmarks."""

    @functools.cache
    def once(script: str, args: tuple[str, ...], settings: str, ranks: int, capacity_bytes: int) -> DeviceProfile:
        folder = tmp_path_factory.mktemp("virtual")
        apply = None
        if chosen[settings]:
            apply = folder / "oomdoc.yaml"
            write(ConfigFile(remedies=chosen[settings]), apply)
        result = run(
            RunSpec(
                script=str(SCRIPTS / script),
                args=args,
                run_dir=folder,
                gpu="a100-80gb",
                capacity_bytes=capacity_bytes,
                steps=2,
                apply=apply,
                nproc_per_node=ranks,
            )
        )
        assert result.failure is None, result.failure
        assert result.out_of_memory or not result.exit_status, f"{script} ended with status {result.exit_status}"
        return build([load(result.snapshots[0])]).devices[0]

    chosen: dict[str, tuple[Setting, ...]] = {}

    def of(
        script: str,
        args: tuple[str, ...] = (),
        settings: tuple[Setting, ...] = (),
        ranks: int = 1,
        capacity_bytes: int = NO_LIMIT,
    ) -> DeviceProfile:
        chosen[repr(settings)] = settings
        return once(script, args, repr(settings), ranks, capacity_bytes)

    return of
