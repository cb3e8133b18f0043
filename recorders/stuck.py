"""Signals to a rank whose main thread is inside a C call, such as a collective that waits for a rank that is gone.

Python runs a handler between two of its own instructions, which there may never come. The interpreter's wakeup
descriptor tells another thread at once; it waits for the main thread a moment, and then acts in its place. While the
main thread writes a dump, which is one C call of seconds too, it is not stuck.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 2.0  # a launcher that ends its ranks waits 30 before it kills


class StuckSignals:
    """`handled(number)` is called by the handlers of the main thread; `dumping`: it is at work for us."""

    def __init__(self, act: Callable[[int], None], dumping: Callable[[], bool]) -> None:
        self._act = act
        self._dumping = dumping
        self._arrived: Counter[int] = Counter()
        self._handled: Counter[int] = Counter()

    def handled(self, number: int) -> None:
        self._handled[number] += 1

    @contextmanager
    def watching(self, *numbers: int) -> Iterator[None]:
        """Nothing where the script sets a wakeup descriptor of its own (asyncio does)."""
        if threading.current_thread() is not threading.main_thread() or os.name != "posix":
            yield
            return
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        before = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        _own.add(write_fd)
        thread = threading.Thread(target=self._watch, args=(read_fd, numbers), daemon=True)
        thread.start()
        try:
            yield
        finally:
            current = signal.set_wakeup_fd(before)
            if current != write_fd:
                signal.set_wakeup_fd(current)  # the script's
            _own.discard(write_fd)
            os.close(write_fd)  # the thread reads the end of the pipe
            thread.join(timeout=1)

    def _watch(self, fd: int, numbers: tuple[int, ...]) -> None:
        with contextlib.suppress(OSError), os.fdopen(fd, "rb", buffering=0) as pipe:
            while data := pipe.read(64):
                for number in (each for each in data if each in numbers):
                    self._arrived[number] += 1
                    self._wait(number)

    def _wait(self, number: int) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            if self._handled[number] >= self._arrived[number]:
                return
            if self._dumping():
                until = time.monotonic() + PATIENCE_SECONDS
            time.sleep(0.02)
        self._handled[number] = self._arrived[number]
        self._act(number)


def die_of(number: int) -> None:
    """As if there were no handler; from any thread, which Python's own `signal` refuses."""
    import ctypes

    with contextlib.suppress(Exception):
        ctypes.CDLL(None).signal(number, None)  # SIG_DFL
        os.kill(os.getpid(), number)
        time.sleep(1)
    os._exit(128 + number)


_own: set[int] = set()


def _let_go_in_child() -> None:
    """A worker that the script forked must not write its signals into our pipe."""
    current = signal.set_wakeup_fd(-1)
    if current not in _own and current != -1:
        signal.set_wakeup_fd(current)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
