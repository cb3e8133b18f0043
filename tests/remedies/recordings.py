"""Scripts of this room recorded on a virtual A100, each once; what is in the folder already is not run again."""

import hashlib
from pathlib import Path

from oomdoc.diagnosers.interface import DeviceProfile
from oomdoc.diagnosers.profile import build
from oomdoc.recorders.launch import RunSpec, run
from oomdoc.remedies.config_file import ConfigFile, write
from oomdoc.remedies.interface import Setting
from oomdoc.snapshots.reader import load

SCRIPTS = Path(__file__).parent / "scripts"
NO_LIMIT = 1 << 42


class Recordings:
    """Rank 0, two steps. The same call gives the same profile; the folder outlives the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, DeviceProfile] = {}

    def __call__(
        self,
        script: str,
        args: tuple[str, ...] = (),
        settings: tuple[Setting, ...] = (),
        ranks: int = 1,
        capacity_bytes: int = NO_LIMIT,
    ) -> DeviceProfile:
        what = repr((script, args, settings, ranks, capacity_bytes))
        key = hashlib.sha256(what.encode()).hexdigest()[:16]
        if key not in self._known:
            folder = self._folder / key
            if not (folder / "done").exists():
                _record(folder, script, args, settings, ranks, capacity_bytes)
                (folder / "done").write_text(what)
            self._known[key] = build([load(folder / "rank0.pickle")]).devices[0]
        return self._known[key]


def _record(
    folder: Path, script: str, args: tuple[str, ...], settings: tuple[Setting, ...], ranks: int, capacity_bytes: int
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    apply = folder / "oomdoc.yaml" if settings else None
    if apply is not None:
        write(ConfigFile(remedies=settings), apply)
    spec = RunSpec(
        script=str(SCRIPTS / script),
        args=args,
        run_dir=folder,
        gpu="a100-80gb",
        capacity_bytes=capacity_bytes,
        steps=2,
        apply=apply,
        nproc_per_node=ranks,
    )
    result = run(spec, log=folder / "output.log")
    said = (folder / "output.log").read_text(errors="replace")[-2000:] if (folder / "output.log").exists() else ""
    assert result.failure is None, f"{result.failure}\n{said}"
    assert result.out_of_memory or not result.exit_status, f"{script} ended with status {result.exit_status}\n{said}"
