"""A rank's place in a job, and the file that says how it fares: `rankN.status.json`.

A status is there from the beginning: a process that is killed leaves "running".
"""

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from .launch import RunSpec
from .outcome import Outcome, Whereabouts
from .placement import placement
from .uploading import upload, write_text


@dataclass(slots=True)
class Seat:
    where: Whereabouts
    alone: bool = False  # the launcher of this run cleared the directory, and no other node writes to it
    _written: Path | None = field(default=None)

    @classmethod
    def of(cls, spec: RunSpec) -> "Seat":
        placed = placement() if spec.mode == "cuda" else None
        where = Whereabouts(
            rank=int(os.environ.get("RANK", spec.rank)) if placed is None else placed.rank,
            world_size=spec.world_size if placed is None else placed.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=time.time(),
            restarts=0 if placed is None else placed.restarts,
        )
        return cls(where, alone=spec.nnodes == 1 and not spec.in_place)

    @property
    def rank(self) -> int:
        return self.where.rank

    @property
    def world_size(self) -> int:
        return self.where.world_size

    def take(self, run_dir: Path) -> None:
        """Move aside what an earlier start of this rank left, when an elastic launcher started it anew."""
        with contextlib.suppress(OSError):  # a read-only folder: the first dump says so
            left = [each for each in run_dir.glob(f"rank{self.rank}.*") if not each.name.startswith(".")]
            if self.where.restarts:
                folder = run_dir / f"start{self.where.restarts - 1}"
                folder.mkdir(exist_ok=True)
                for each in left:
                    os.replace(each, folder / each.name)
            elif not self.alone:
                for each in left:
                    each.unlink()
        self._write(run_dir, Outcome(exit_status=0, running=True))

    def out_of_memory(self) -> None:
        self.where = replace(self.where, oom_times=(*self.where.oom_times[-99:], time.time()))

    def leave(self, spec: RunSpec, outcome: Outcome) -> None:
        self.where = replace(self.where, ended=time.time())
        self._write(spec.run_dir, outcome)
        if self._written is not None:
            upload(spec.upload, self._written)

    def _write(self, run_dir: Path, outcome: Outcome) -> None:
        path = run_dir / f"rank{self.rank}.status.json"
        self._written = path if write_text(path, outcome.text(self.where)) else None
