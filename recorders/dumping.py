"""Writes what a rank recorded: whole or not at all, and never in place of something better.

A file goes to a temporary name and is renamed. What cannot be written (a full disk, a read-only folder) is said in one
line; the file of before stays, and the script goes on.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..snapshots import recording, writer
from ..snapshots.model import Snapshot
from .launch import RunSpec
from .recorder import Recorder, Taken
from .uploading import say, stands, upload

OOM_PAUSE_SECONDS = 60.0  # a script that retries fails many times: the first is dumped at once, then one a minute
Facts = Callable[[], dict[str, object]]


class Dumper:
    """`facts` are added to the recording: how the script ended, as far as it is known at that moment."""

    def __init__(self, spec: RunSpec, recorder: Recorder, rank: int, facts: Facts) -> None:
        self.spec = spec
        self.recorder = recorder
        self.rank = rank
        self.facts = facts
        self._last_oom = -OOM_PAUSE_SECONDS
        self.at_work = False  # what ends the process waits until it is over

    @property
    def path(self) -> Path:
        return self.spec.run_dir / f"rank{self.rank}.pickle"

    def at_oom(self) -> None:
        """In the allocator's call: before the error comes to the script, which may never give control back."""
        now = time.monotonic()
        if now - self._last_oom >= OOM_PAUSE_SECONDS:
            self._last_oom = now
            self.dump()

    def dump(self, name: str | None = None, *, keep: Callable[[Snapshot], bool] | None = None) -> Snapshot | None:
        """-> what was written, None where that failed or a dump is being made already (a signal in the midst of one).

        With `keep` the file is written only where it says so; the snapshot is the result all the same.
        """
        if self.at_work:
            return None
        self.at_work = True
        path = self.path if name is None else self.spec.run_dir / name
        try:
            taken = self.recorder.snapshot((self.spec.script, *self.spec.args))
            snapshot = self._with_facts(taken.snapshot)
            if keep is not None and not keep(snapshot):
                return snapshot
            writer.dump_dict(raw_of(replace(taken, snapshot=snapshot)), path)
        except OSError as error:
            say(f"{path} was not written: {error.strerror or error}{stands(path)}")
            return None
        finally:
            self.at_work = False
        upload(self.spec.upload, path)
        return snapshot

    def _with_facts(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.recording is None:
            return snapshot
        facts = {**snapshot.recording.facts, **self.facts()}
        return replace(snapshot, recording=replace(snapshot.recording, facts=facts))


def raw_of(taken: Taken) -> dict[str, Any]:
    """PyTorch's own dict where there is one, with everything in it that oomdoc does not read."""
    if taken.raw is None or taken.snapshot.recording is None:
        return writer.to_dict(taken.snapshot)
    return {**taken.raw, "oomdoc": recording.encode(taken.snapshot.recording)}
