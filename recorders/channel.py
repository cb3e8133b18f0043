"""From the ranks of this machine to their launcher: JSON lines through a named pipe.

A line is shorter than PIPE_BUF, so the lines of several ranks never mix; a rank never waits for a reader. The pipe's
path is in the environment, which every launcher passes on where an inherited descriptor would be closed.
"""

import contextlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "OOMDOC_CHANNEL"
LONGEST = 4096  # PIPE_BUF of Linux: what write() does not interleave
OnRecord = Callable[[Mapping[str, Any]], None]
_END = "end"


@contextmanager
def listening(on_record: OnRecord) -> Iterator[dict[str, str]]:
    """Gives the variables for the ranks' environment; `on_record` is called in a thread of its own."""
    if not hasattr(os, "mkfifo"):
        yield {}
        return
    folder = Path(tempfile.mkdtemp(prefix="oomdoc-"))
    try:
        path = folder / "channel"
        os.mkfifo(path, 0o600)
        fd = os.open(path, os.O_RDWR)  # held open for writing too: no end of file when a rank goes
        reader = threading.Thread(target=_read, args=(fd, on_record), daemon=True)
        reader.start()
        try:
            yield {VARIABLE: str(path)}
        finally:
            os.write(fd, (json.dumps(_END) + "\n").encode())
            reader.join(timeout=2)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(fd: int, on_record: OnRecord) -> None:
    with os.fdopen(fd, encoding="utf-8", errors="replace") as pipe:
        for line in pipe:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if record == _END:
                    return
                if isinstance(record, dict):
                    on_record(record)


class Speaker:
    """The rank's end. Says nothing where there is no launcher, or it has gone."""

    def __init__(self, path: str | None) -> None:
        self._fd: int | None = None
        self._pid = os.getpid()
        if path is not None:
            with contextlib.suppress(OSError):
                self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    @property
    def open(self) -> bool:
        return self._fd is not None and os.getpid() == self._pid  # not in a worker that the script forked

    def say(self, record: Mapping[str, Any]) -> None:
        line = (json.dumps(record) + "\n").encode()
        if self._fd is not None and self.open and len(line) <= LONGEST:
            with contextlib.suppress(OSError):  # full, or closed: the next line tells more anyway
                os.write(self._fd, line)

    def close(self) -> None:
        if self._fd is not None and self.open:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None
