"""Progress of a rank as JSON lines on an inherited file descriptor, at most five a second.

    {"step": 2, "phase": "backward", "allocated_bytes": 1, "peak_bytes": 2, "events": 3}

Written when the hooks see a change, so that no thread is needed (a script may fork).
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .launch import INTERRUPTED_RECORD, PROGRESS_FD
from .recorder import Recorder

INTERVAL_SECONDS = 0.2


class Progress:
    def __init__(self, recorder: Recorder, fd: int) -> None:
        self._recorder = recorder
        self._fd = fd
        self._pid = os.getpid()
        self._next = 0.0

    @classmethod
    @contextmanager
    def inherited(cls, recorder: Recorder) -> Iterator[None]:
        """Report to the launcher's descriptor, if there is one, while the block runs."""
        fd = os.environ.pop(PROGRESS_FD, None)
        if fd is None:
            yield
            return
        progress = cls(recorder, int(fd))
        recorder.hooks.on_change = progress.tick
        previous = signal.getsignal(signal.SIGINT)
        if previous is signal.default_int_handler:
            signal.signal(signal.SIGINT, progress.interrupted)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) == progress.interrupted:
                signal.signal(signal.SIGINT, previous)
            recorder.hooks.on_change = None
            progress.write()
            with contextlib.suppress(OSError):
                os.close(progress._fd)

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        """Tells the launcher that it need not pass the SIGINT on; then as Python does."""
        with contextlib.suppress(OSError):
            os.write(self._fd, (json.dumps(INTERRUPTED_RECORD) + "\n").encode())
        signal.default_int_handler(number, frame)

    def tick(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVAL_SECONDS
            self.write()

    def write(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked worker
        allocated, peak, events = self._recorder.allocated()
        hooks = self._recorder.hooks
        line = {
            "step": hooks.step,
            "phase": hooks.phase,
            "allocated_bytes": allocated,
            "peak_bytes": peak,
            "events": events,
        }
        with contextlib.suppress(OSError):
            os.write(self._fd, (json.dumps(line) + "\n").encode())
