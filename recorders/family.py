"""The ranks of a virtual run that differ from the one that was asked for: started when a rank says so (mailbox.py)."""

import contextlib
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from .channel import Speaker
from .mailbox import FOLDER, ended

MOST_RANKS = 16  # run side by side: each is a process of some hundred MiB
DRAINED = {"drained": True}  # said by ourselves, behind what the ranks said
_POLL_SECONDS = 0.05
Child = subprocess.Popen[bytes]


class Family:
    """`start` starts the process of a rank."""

    def __init__(self, run_dir: Path, first: int, start: Callable[[int], Child]) -> None:
        self._folder = run_dir / FOLDER
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._first, self._start = first, start
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._started = {first}
        self.drained = threading.Event()

    def ask(self, rank: int) -> None:
        """A rank said that `rank` differs from it. From any thread."""
        self._asked.put(rank)

    def wait(self, child: Child, channel: str | None) -> int:
        """Until all have ended; the first one's exit status, or the first other that is not 0."""
        running, statuses = {self._first: child}, []
        try:
            while running:
                for rank, each in list(running.items()):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        statuses.append(each.wait(timeout=_POLL_SECONDS))
                        ended(self._folder, rank).touch()
                        del running[rank]
                if child.returncode:
                    _terminate(running)
                if not running:
                    self._drain(channel)
                running |= self._newcomers()
        finally:
            _terminate(running)
            shutil.rmtree(self._folder, ignore_errors=True)
        return child.returncode or next(filter(None, statuses), 0)

    def _newcomers(self) -> dict[int, Child]:
        found = {}
        while not self._asked.empty():
            rank = self._asked.get()
            if rank in self._started:
                continue
            if len(self._started) >= MOST_RANKS:
                ended(self._folder, rank).touch()
                continue
            self._started.add(rank)
            found[rank] = self._start(rank)
        return found

    def _drain(self, channel: str | None) -> None:
        """Wait until everything that the ranks have said was heard."""
        self.drained.clear()
        speaker = Speaker(channel)
        if speaker.open:
            speaker.say(DRAINED)
            self.drained.wait(timeout=2)
            speaker.close()


def _terminate(running: dict[int, Child]) -> None:
    for each in running.values():
        with contextlib.suppress(ProcessLookupError):
            each.send_signal(signal.SIGTERM)
